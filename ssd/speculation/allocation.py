"""Sharing a budget of branches out among the acceptance lengths of one round.

Words: P_k is the probability that exactly k proposal tokens are accepted; h_k(F) that the token that follows is then
among the F anticipated ones; a the acceptance of one token; r the exponent of the power law, in which a fan-out of F
misses with probability F^-r. The hit rate of an allocation is sum_k P_k h_k(F_k).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

Coverage = Callable[[int, int], float]
"""h: (acceptance length k, fan-out F) -> probability, 0 at F = 0 and rising."""


def outcome_law(acceptances: Sequence[float]) -> tuple[float, ...]:
    """P_0..P_K from the acceptance of token j = 1..K given that all earlier ones were accepted."""
    law: list[float] = []
    reached = 1.0
    for acceptance in acceptances:
        law.append(reached * (1.0 - acceptance))
        reached *= acceptance
    return (*law, reached)


def power_law(exponent: float) -> Coverage:
    """h(F) = 1 - (F + 1)^-r for every k: what is assumed before anything was measured."""
    return lambda _, fan_out: 1.0 - (fan_out + 1.0) ** -exponent


def theorem12(acceptance: float, proposal_len: int, budget: float, exponent: float) -> tuple[float, ...]:
    """Real-valued F_0..F_K that sum to `budget` and miss least often when a fan-out of F misses with F^-r.

    0 < acceptance < 1, exponent > 0.
    """
    _check(acceptance, proposal_len, budget, exponent)
    step = acceptance ** (1.0 / (1.0 + exponent))
    shares = [step**k for k in range(proposal_len)]
    shares.append(step**proposal_len * (1.0 - acceptance) ** (-1.0 / (1.0 + exponent)))
    scale = budget / sum(shares)
    return tuple(scale * share for share in shares)


def geometric_miss_rate(acceptance: float, proposal_len: int, budget: float, exponent: float) -> float:
    """Share of rounds that miss under `theorem12`."""
    fan_outs = theorem12(acceptance, proposal_len, budget, exponent)
    law = outcome_law((acceptance,) * proposal_len)
    return sum(p * fan_out**-exponent for p, fan_out in zip(law, fan_outs, strict=True))


def uniform_miss_rate(proposal_len: int, budget: float, exponent: float) -> float:
    """Share of rounds that miss when every acceptance length gets budget / (K + 1), whatever the acceptance."""
    _check(0.5, proposal_len, budget, exponent)
    return (budget / (proposal_len + 1)) ** -exponent


def greedy_units(law: Sequence[float], coverage: Coverage) -> Iterator[tuple[int, float]]:
    """The acceptance length that each further unit of budget goes to, and what it adds to the hit rate; endless.

    Always the largest P_k [h_k(F + 1) - h_k(F)], the shorter acceptance among equals. For concave h the first B
    units are an optimal allocation of B, for every B.
    """
    given = [0] * len(law)
    reached = [coverage(k, 0) for k in range(len(law))]
    heap: list[tuple[float, int, float]] = []

    def offer(k: int) -> None:
        value = coverage(k, given[k] + 1)
        heapq.heappush(heap, (-law[k] * (value - reached[k]), k, value))

    for k in range(len(law)):
        offer(k)
    while heap:
        loss, k, value = heapq.heappop(heap)
        given[k] += 1
        reached[k] = value
        offer(k)
        yield k, -loss


def greedy_allocation(law: Sequence[float], coverage: Coverage, budget: int) -> tuple[int, ...]:
    """Integer F_0..F_K that sum to `budget`, unit by unit as `greedy_units` has it.

    law holds P_0..P_K. Raises ValueError for a negative budget or an empty law.
    """
    if budget < 0 or not law:
        raise ValueError(f"a budget of {budget} cannot be shared out among {len(law)} acceptance lengths")
    fan_outs = [0] * len(law)
    for (k, _), _ in zip(greedy_units(law, coverage), range(budget), strict=False):
        fan_outs[k] += 1
    return tuple(fan_outs)


def _check(acceptance: float, proposal_len: int, budget: float, exponent: float) -> None:
    if not 0.0 < acceptance < 1.0:
        raise ValueError(f"acceptance must be between 0 and 1, both excluded, got {acceptance}")
    if proposal_len < 0:
        raise ValueError(f"proposal_len must not be negative, got {proposal_len}")
    if budget <= 0.0 or exponent <= 0.0:
        raise ValueError(f"budget and exponent must be positive, got {budget} and {exponent}")
