"""Coupled verification: plain equality between the proposal and the target's own draws (algorithm: coupling)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ssd.speculation.params import Draw


@dataclass(frozen=True, slots=True)
class Verdict:
    """`accepted` = k; `emitted` = the draws y_0..y_k: the first k equal the proposal, y_k is the target's own."""

    accepted: int
    emitted: tuple[Draw, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(draw.id for draw in self.emitted)


def verify(proposal_ids: Sequence[int], drawn: Sequence[Draw]) -> Verdict:
    """Accept the longest prefix with s_{j+1} = y_j.

    `drawn` holds y_0..y_K for a proposal s_1..s_K. A draw after the first difference was made from logits that saw a
    refused token, so it is dropped. Raises ValueError when the lengths do not fit.
    """
    if len(drawn) != len(proposal_ids) + 1:
        raise ValueError(f"{len(proposal_ids)} proposal tokens need {len(proposal_ids) + 1} draws, got {len(drawn)}")
    accepted = 0
    while accepted < len(proposal_ids) and drawn[accepted].id == proposal_ids[accepted]:
        accepted += 1
    return Verdict(accepted, tuple(drawn[: accepted + 1]))
