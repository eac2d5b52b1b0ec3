"""Which outcomes of the round in flight the draft prepares for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Anticipated(NamedTuple):
    """Outcome (accepted, token), and the token's place among the candidates for this acceptance length, from 1."""

    accepted: int
    token: int
    rank: int


def candidate_lists(ranked: Sequence[Sequence[int]], proposal: Sequence[int]) -> list[tuple[int, ...]]:
    """The candidates after k = 0..K acceptances, best first, from ranked[k], which may also hold s_{k+1}.

    For k < K that id is left out: had it been drawn, more than k tokens would have been accepted. Raises ValueError
    unless there are K + 1 lists.
    """
    if len(ranked) != len(proposal) + 1:
        raise ValueError(f"a proposal of {len(proposal)} tokens needs as many lists and one more, got {len(ranked)}")
    impossible = (*proposal, None)
    return [
        tuple(token for token in dict.fromkeys(ids) if token != never)
        for ids, never in zip(ranked, impossible, strict=True)
    ]


def candidates_needed(allocation: Sequence[int], part: int = 0, parts: int = 1) -> int:
    """Length of the ranked lists that `plan_branches` wants: one spare for k < K, where one may be left out."""
    last = len(allocation) - 1
    return max((part + 1 + (count - 1) * parts + (k < last) for k, count in enumerate(allocation) if count), default=0)


def plan_branches(
    ranked: Sequence[Sequence[int]],
    proposal: Sequence[int],
    allocation: Sequence[int],
    part: int = 0,
    parts: int = 1,
) -> list[Anticipated]:
    """The outcomes to prepare, ordered by acceptance length and then by rank.

    allocation[k] says how many of the `candidate_lists` of k to take: the first ones, or, where `parts` drafts share
    the work, those of rank part + 1, part + 1 + parts, and so on, so that no two drafts take the same. A list that is
    too short gives what it has. Raises ValueError unless there are K + 1 lists and K + 1 numbers, and part < parts.
    """
    lists = candidate_lists(ranked, proposal)
    if len(lists) != len(allocation) or not 0 <= part < parts:
        raise ValueError(f"{len(lists)} lists need as many numbers, got {len(allocation)}; part {part} of {parts}")
    return [
        Anticipated(k, token, part + 1 + place * parts)
        for k, (candidates, count) in enumerate(zip(lists, allocation, strict=True))
        for place, token in enumerate(candidates[part::parts][:count])
    ]
