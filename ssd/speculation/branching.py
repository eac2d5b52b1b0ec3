"""Which outcomes of the round in flight the draft prepares for."""

from __future__ import annotations

from collections.abc import Sequence


def candidates_needed(allocation: Sequence[int]) -> int:
    """Length of the candidate lists that `plan_branches` wants: one spare for k < K, where one may be left out."""
    last = len(allocation) - 1
    return max((count + (k < last) for k, count in enumerate(allocation) if count), default=0)


def plan_branches(
    candidates: Sequence[Sequence[int]], proposal: Sequence[int], allocation: Sequence[int]
) -> list[tuple[int, int]]:
    """The (accepted, token) outcomes to prepare, ordered by acceptance length and then by rank.

    candidates[k] lists ids for the token after k acceptances, best first, k = 0..K; allocation[k] says how many to
    take. For k < K the id s_{k+1} is left out: had it been drawn, more than k tokens would have been accepted. A list
    that is too short gives what it has. Raises ValueError unless there are K + 1 lists and K + 1 numbers.
    """
    if not len(candidates) == len(allocation) == len(proposal) + 1:
        raise ValueError(
            f"a proposal of {len(proposal)} tokens needs {len(proposal) + 1} candidate lists and allocations, "
            f"got {len(candidates)} and {len(allocation)}"
        )
    branches: list[tuple[int, int]] = []
    for k, (ranked, count) in enumerate(zip(candidates, allocation, strict=True)):
        impossible = proposal[k] if k < len(proposal) else None
        possible = [token for token in dict.fromkeys(ranked) if token != impossible]
        branches.extend((k, token) for token in possible[:count])
    return branches
