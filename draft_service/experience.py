"""What the draft learns from outcomes: it knows the rank of the target's own token far beyond its branches."""

from __future__ import annotations

from collections.abc import Sequence

from draft_service.round import Round
from ssd.speculation.proposal import Source
from ssd.speculation.ranks import AcceptanceStatistics, StatisticsSettings

RANKS_KEPT = 16
"""Candidates remembered for each acceptance length even where fewer become branches."""

_SETTINGS = StatisticsSettings(ranks=32)


class Experience:
    """Statistics of all sequences. Ranks of coupled draws and of free ones are different things, so they are kept
    apart."""

    def __init__(self) -> None:
        self.workloads = {rejection: AcceptanceStatistics(_SETTINGS) for rejection in (False, True)}

    def of_sequence(self, *, rejection: bool) -> AcceptanceStatistics:
        """Statistics of a new sequence: they begin with those of all the others, and add to them."""
        return AcceptanceStatistics(parent=self.workloads[rejection])


def learn(statistics: AcceptanceStatistics, round_: Round, committed: Sequence[int], *, rejection: bool) -> None:
    """The round ended with the ids `committed` since its base.

    With coupled draws a proposal is judged by the text whether the target has verified it or not. Under rejection only
    a verification tells, so that a round counts only if its proposal was certainly verified.
    """
    head = round_.head.ids
    if not (head or round_.ranked):
        return
    if round_.to_draft or round_.source is Source.NGRAM or (rejection and not round_.certain):
        return
    accepted = next((i for i, (s, y) in enumerate(zip(head, committed, strict=False)) if s != y), None)
    if accepted is None:
        accepted = min(len(head), len(committed))
    if accepted == len(committed):
        if accepted and not rejection:
            statistics.observe(accepted, accepted, after_hit=round_.after_hit)
        return
    rank, listed = None, None
    if round_.ranked:
        candidates = round_.ranked[accepted]
        listed = len(candidates)
        rank = candidates.index(committed[accepted]) + 1 if committed[accepted] in candidates else None
    statistics.observe(accepted, len(head), rank, listed=listed, after_hit=round_.after_hit)
