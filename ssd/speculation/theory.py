"""Closed forms of how fast speculation is.

Units: times are in verifications (the target's step for one round), speeds are relative to plain decoding, tokens are
per round and sequence. Source: Kumar, Dao, May, "Speculative Speculative Decoding" (arXiv 2603.03251), re-derived.
"""

from __future__ import annotations

import math


def expected_tokens(acceptance: float, proposal_len: int) -> float:
    """E(a, K): tokens of one round when every proposal token is accepted with probability a, independently."""
    _check_share(acceptance=acceptance)
    if proposal_len < 0:
        raise ValueError(f"proposal_len must not be negative, got {proposal_len}")
    if acceptance == 1.0:
        return float(proposal_len + 1)
    return (1.0 - acceptance ** (proposal_len + 1)) / (1.0 - acceptance)


def sd_speedup(tokens: float, t_draft: float) -> float:
    """S_SD: `tokens` per round, of which each first waits t_draft for its proposal."""
    return tokens / (1.0 + t_draft)


def ssd_speedup(
    hit_rate: float, tokens_hit: float, tokens_miss: float, t_primary: float, t_fallback: float, batch: int = 1
) -> float:
    """S_SSD where a miss of any of `batch` rows makes the whole round wait for the fallback.

    t_primary is T_p, the time of building the table, which hides behind the verification; t_fallback is T_b, which
    does not.
    """
    _check_share(hit_rate=hit_rate)
    all_hit = hit_rate**batch
    tokens = hit_rate * tokens_hit + (1.0 - hit_rate) * tokens_miss
    return tokens / (all_hit * max(1.0, t_primary) + (1.0 - all_hit) * (1.0 + t_fallback))


def per_row_speedup(hit_rate: float, tokens_hit: float, tokens_fallback: float, t_primary: float) -> float:
    """S with a fallback per row: a row that missed never makes others wait, so the batch size does not matter."""
    _check_share(hit_rate=hit_rate)
    return (hit_rate * tokens_hit + (1.0 - hit_rate) * tokens_fallback) / max(1.0, t_primary)


def fallback_crossover(
    hit_rate: float,
    tokens_hit: float,
    tokens_slow: float,
    tokens_fast: float,
    t_slow: float,
    t_fast: float,
    t_primary: float = 1.0,
) -> float:
    """b*: the batch size from which the fast, weaker fallback wins in batch-synchronous rounds.

    math.inf when it never does, 0 when it always does.
    """
    _check_share(hit_rate=hit_rate)
    slow = hit_rate * tokens_hit + (1.0 - hit_rate) * tokens_slow
    fast = hit_rate * tokens_hit + (1.0 - hit_rate) * tokens_fast
    delta = fast * (1.0 + t_slow) - slow * (1.0 + t_fast)
    if delta <= 0.0 or hit_rate == 1.0:
        return math.inf
    if slow <= fast or hit_rate == 0.0:
        return 0.0
    all_hit = delta / ((slow - fast) * max(1.0, t_primary) + delta)
    return math.log(all_hit) / math.log(hit_rate)


def push_round(t_primary: float, round_trip: float) -> float:
    """Length of a round when tables are pushed to the target: the table must be there when the outcome is."""
    return max(1.0, t_primary + round_trip)


def ask_round(t_primary: float, round_trip: float) -> float:
    """Length of a round when the target asks for the proposal of an outcome and waits for the answer."""
    return max(1.0 + round_trip, t_primary)


def pushing_wins(t_primary: float) -> bool:
    """Whether pushing gives shorter rounds than asking, for any round trip > 0."""
    return t_primary < 1.0


def _check_share(**values: float) -> None:
    for name, value in values.items():
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} must be in [0, 1], got {value}")
