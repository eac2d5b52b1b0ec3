"""What the next forward pass is for: misses first, then tables, and prefill beside both."""

from collections.abc import Iterable
from dataclasses import dataclass

from draft_service.room import Room
from draft_service.sequence import DraftSequence, Work
from ssd.runtime.runner import RunRow

URGENT, ORDINARY, PREFILL = range(3)
PREFILL_PART = 4
"""A sequence with more than this part of the token budget to compute is prefilling: it takes what the others leave."""


@dataclass(frozen=True)
class TrunkJob:
    """A row of one sequence's trunk."""

    sequence: DraftSequence
    row: RunRow


@dataclass
class Scheduler:
    """Shares the steps out, `token_budget` tokens each (one job that is larger runs alone)."""

    room: Room
    token_budget: int
    _trunks_ran_last: bool = False

    def choose(self, live: Iterable[DraftSequence]) -> tuple[list[TrunkJob], list[DraftSequence]]:
        """Jobs of one step: rows of trunks, or sequences whose trees grow by a token. Never both: they are two passes.

        A just-in-time proposal goes before everything, as a target waits for it. Other rows ride along, since a row
        more costs little. Otherwise trunks and trees take turns, so that neither a stream of long prompts nor a stream
        of trees can hold up the other.
        """
        waiting = sorted((s for s in live if s.work is not Work.NONE), key=self._rank)
        trees = [s for s in waiting if s.work is Work.GROW]
        trunks = [s for s in waiting if s.work is not Work.GROW]
        urgent = bool(trunks) and self._rank(trunks[0])[0] == URGENT
        if trees and not urgent and (self._trunks_ran_last or not trunks):
            growing = self._growing(trees)
            if growing:
                self._trunks_ran_last = False
                return [], growing
        self._trunks_ran_last = True
        return self._rows(trunks), []

    def _rank(self, sequence: DraftSequence) -> tuple[int, int]:
        """Misses, then roots and trees, then whoever has much to prefill; the older round first."""
        if sequence.base_len - len(sequence.trunk.ids) > self.token_budget // PREFILL_PART:
            kind = PREFILL
        else:
            kind = URGENT if sequence.work is Work.PROPOSE else ORDINARY
        return kind, sequence.round.ticket

    def _rows(self, sequences: list[DraftSequence]) -> list[TrunkJob]:
        jobs: list[TrunkJob] = []
        left = self.token_budget
        for sequence in sequences:
            if left <= 0:
                break
            row = sequence.trunk_row(left, whole=not jobs)
            if row is not None and self.room.for_trunk(sequence, row.start + len(row.ids)):
                jobs.append(TrunkJob(sequence, row))
                left -= len(row.ids)
        return jobs

    def _growing(self, sequences: list[DraftSequence]) -> list[DraftSequence]:
        chosen: list[DraftSequence] = []
        left = self.token_budget
        for sequence in sequences:
            tokens = sequence.branches
            if (tokens <= left or not chosen) and self.room.for_tree(sequence):
                chosen.append(sequence)
                left -= tokens
        return chosen
