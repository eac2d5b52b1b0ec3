"""How many next tokens the draft anticipates for each acceptance length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ssd.speculation.allocation import greedy_allocation, outcome_law, power_law
from ssd.speculation.ranks import AcceptanceStatistics


class FanOut(Protocol):
    """A rule that shares the branches of one round out among the acceptance lengths."""

    def allocate(self, depth_in_flight: int, after_hit: bool = True) -> tuple[int, ...]:
        """F_0..F_K for an in-flight proposal of K = depth_in_flight tokens: K + 1 numbers, each >= 0.

        after_hit: the proposal came from a table; False when a fallback made it.
        """
        ...


@dataclass(frozen=True, slots=True)
class UniformFanOut:
    """`fan_out` candidates for every k.

    With nothing in flight only k = 0 can happen, so it gets what a proposal of `proposal_len` tokens would have got
    in all.
    """

    fan_out: int
    proposal_len: int = 0

    def __post_init__(self) -> None:
        _check_not_negative(fan_out=self.fan_out, proposal_len=self.proposal_len)

    def allocate(self, depth_in_flight: int, after_hit: bool = True) -> tuple[int, ...]:
        _check_not_negative(depth_in_flight=depth_in_flight)
        if depth_in_flight == 0:
            return (self.fan_out * (self.proposal_len + 1),)
        return (self.fan_out,) * (depth_in_flight + 1)


@dataclass(frozen=True, slots=True)
class BudgetUniform:
    """`budget` branches shared as evenly as possible.

    What is left over goes to k = K first, then to k = 0, 1, ...: full acceptance is the likeliest single outcome of a
    good draft, and short acceptances are likelier than long ones.
    """

    budget: int

    def __post_init__(self) -> None:
        _check_not_negative(budget=self.budget)

    def allocate(self, depth_in_flight: int, after_hit: bool = True) -> tuple[int, ...]:
        _check_not_negative(depth_in_flight=depth_in_flight)
        share, left = divmod(self.budget, depth_in_flight + 1)
        order = [depth_in_flight, *range(depth_in_flight)]
        favoured = frozenset(order[:left])
        return tuple(share + (k in favoured) for k in range(depth_in_flight + 1))


@dataclass(frozen=True, slots=True)
class ExplicitFanOut:
    """Lists F_0..F_K, one for rounds after hits and one for rounds after misses (empty = the same).

    The last number is for full acceptance. A shorter proposal takes the beginning of the list and that last number; a
    longer one anticipates nothing for the acceptance lengths that the list does not name. With nothing in flight
    k = 0 gets all.
    """

    after_hit: tuple[int, ...]
    after_miss: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.after_hit:
            raise ValueError("an explicit fan-out needs at least one number")
        for name, fan_outs in (("after_hit", self.after_hit), ("after_miss", self.after_miss)):
            _check_not_negative(**{f"{name}[{k}]": fan_out for k, fan_out in enumerate(fan_outs)})

    def allocate(self, depth_in_flight: int, after_hit: bool = True) -> tuple[int, ...]:
        _check_not_negative(depth_in_flight=depth_in_flight)
        *named, last = self.after_hit if after_hit or not self.after_miss else self.after_miss
        if depth_in_flight == 0:
            return (sum(named) + last,)
        unnamed = (0,) * (depth_in_flight - len(named))
        return (*named[:depth_in_flight], *unnamed, last)


@dataclass(frozen=True, slots=True)
class GeometricFanOut:
    """`budget` branches shared as is best when each token is accepted with probability `acceptance` and a fan-out of
    F misses with the power law of `exponent` (Theorem 12, in whole numbers)."""

    acceptance: float
    exponent: float
    budget: int

    def __post_init__(self) -> None:
        _check_not_negative(budget=self.budget)
        if not 0.0 <= self.acceptance <= 1.0:
            raise ValueError(f"acceptance must be in [0, 1], got {self.acceptance}")
        if not 0.0 < self.exponent < float("inf"):
            raise ValueError(f"exponent must be positive, got {self.exponent}")

    def allocate(self, depth_in_flight: int, after_hit: bool = True) -> tuple[int, ...]:
        _check_not_negative(depth_in_flight=depth_in_flight)
        law = outcome_law((self.acceptance,) * depth_in_flight)
        return greedy_allocation(law, power_law(self.exponent), self.budget)


class MeasuredFanOut:
    """`budget` branches shared as is best by the acceptances and ranks that were really seen.

    Follows `statistics` as they change; what it worked out is kept until then, since all sequences of one workload
    ask the same few questions in every step.
    """

    def __init__(self, statistics: AcceptanceStatistics, budget: int) -> None:
        _check_not_negative(budget=budget)
        self.statistics = statistics
        self.budget = budget
        self._version = -1
        self._known: dict[tuple[int, bool], tuple[int, ...]] = {}

    def allocate(self, depth_in_flight: int, after_hit: bool = True) -> tuple[int, ...]:
        _check_not_negative(depth_in_flight=depth_in_flight)
        if depth_in_flight == 0:
            return (self.budget,)
        if self._version != self.statistics.version:
            self._version = self.statistics.version
            self._known.clear()
        key = (depth_in_flight, after_hit)
        if key not in self._known:
            law = self.statistics.outcome_law(depth_in_flight, after_hit=after_hit)
            self._known[key] = greedy_allocation(law, self.statistics.coverage_of(depth_in_flight), self.budget)
        return self._known[key]


def _check_not_negative(**values: int) -> None:
    for name, value in values.items():
        if value < 0:
            raise ValueError(f"{name} must not be negative, got {value}")
