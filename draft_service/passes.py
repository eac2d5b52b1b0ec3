"""Forward passes: what the scheduler chose goes through the model, and what was wanted of the logits comes out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from torch import Tensor

from draft_service.drawing import Drawn, drawn
from draft_service.scheduler import TrunkJob
from draft_service.sequence import DraftSequence
from protos.ssd.v1 import draft_pb2
from ssd.runtime.runner import ModelRunner

Answered = Iterator[tuple[DraftSequence, list[Drawn]]]
"""Sequences with the answers to what they wanted, in order."""


class Passes:
    """Runs one model, and tells how long the last pass took. It has no clock of its own."""

    def __init__(self, runner: ModelRunner, vocab_size: int, ordinary_tokens: int) -> None:
        """`ordinary_tokens`: a row with more tokens than that before those whose logits are needed is prefill."""
        self.count = 0
        self._runner = runner
        self._vocab_size = vocab_size
        self._ordinary = ordinary_tokens
        self._began = 0.0
        self._running: draft_pb2.DraftTiming | None = None

    def trunks(self, now: float, jobs: Sequence[TrunkJob]) -> Answered:
        """Prefill, the next token of just-in-time proposals, the roots of tables."""
        rows = [job.row for job in jobs]
        prefill = any(not row.logits or len(row.ids) - row.logits > self._ordinary for row in rows)
        self._begin(now, len(rows), sum(len(row.ids) for row in rows), prefill)
        logits = self._runner.run(rows)
        for job in jobs:
            job.sequence.trunk.wrote(job.row, job.sequence.ids)
        done = [job for job in jobs if job.row.logits]
        return self._answered([job.sequence for job in done], [job.row.logits for job in done], logits)

    def trees(self, now: float, sequences: Sequence[DraftSequence]) -> Answered:
        """One more token for every branch."""
        items = [sequence.branch_items() for sequence in sequences]
        counts = [len(part) for part in items]
        self._begin(now, len(sequences), sum(counts), False)
        return self._answered(sequences, counts, self._runner.run_branches([item for part in items for item in part]))

    def end(self, now: float | None) -> draft_pb2.DraftTiming | None:
        """The results of the last pass are taken in at monotonic time `now`, seconds; None without one, or without a
        time."""
        timing, self._running = self._running, None
        if timing is None or now is None:
            return None
        timing.step_ms = (now - self._began) * 1000.0
        return timing

    def _begin(self, now: float, rows: int, tokens: int, prefill: bool) -> None:
        self.count += 1
        self._began = now
        self._running = draft_pb2.DraftTiming(rows=rows, tokens=tokens, prefill=prefill)

    def _answered(self, sequences: Sequence[DraftSequence], counts: Sequence[int], logits: Tensor) -> Answered:
        """counts: rows of logits of each sequence, of which it may want only the first ones."""
        wanted = [sequence.wanted for sequence in sequences]
        starts = itertools.accumulate(counts, initial=0)
        places = [start + i for start, part in zip(starts, wanted, strict=False) for i in range(len(part))]
        if not places:
            return iter(())
        part = logits if len(places) == len(logits) else logits[places]
        most = max(sequence.candidates_wanted for sequence in sequences)
        answers = iter(drawn(part, [one for part in wanted for one in part], most, self._vocab_size))
        return (
            (sequence, list(itertools.islice(answers, len(part))))
            for sequence, part in zip(sequences, wanted, strict=True)
        )
