"""Forward passes: what the scheduler chose goes through the model, and what was wanted of the logits comes out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from torch import Tensor

from draft_service.drawing import Drawn, Wanted, drawn, ranked, stepped_answers
from draft_service.scheduler import TrunkJob
from draft_service.sequence import DraftSequence, Work
from protos.ssd.v1 import draft_pb2
from ssd.runtime.blocks import OutOfBlocks
from ssd.runtime.draws import MOST_RANKED, PlainDraw
from ssd.runtime.runner import Runner, RunRow, Stepped
from ssd.telemetry.trace import Tracer

Answered = Iterator[tuple[DraftSequence, list[Drawn]]]
"""Sequences with the answers to what they wanted, in order. Where several tokens come from one pass a sequence stands
there once for each, and what it does with one decides whether there is a next: take them in one by one."""


class Passes:
    """Runs one model, and tells how long the last pass took. It has no clock of its own."""

    def __init__(self, runner: Runner, vocab_size: int, ordinary_tokens: int, tracer: Tracer) -> None:
        """`ordinary_tokens`: a row with more tokens than that before those whose logits are needed is prefill."""
        self.count = 0
        self._runner = runner
        self._vocab_size = vocab_size
        self._ordinary = ordinary_tokens
        self._tracer = tracer
        self._kind = ""
        self._began = 0.0
        self._steps = 1
        self._running: draft_pb2.DraftTiming | None = None

    def trunks(self, now: float, jobs: Sequence[TrunkJob]) -> Answered:
        """Prefill, the next tokens of just-in-time proposals, the roots of tables."""
        rows = [job.row for job in jobs]
        prefill = any(not row.logits or len(row.ids) - row.logits > self._ordinary for row in rows)
        asked = not prefill and all(job.sequence.work is Work.PROPOSE for job in jobs)
        self._begin("trunk", now, len(rows), sum(len(row.ids) for row in rows), prefill, asked)
        if self._runner.draws and (draws := self._proposals(jobs)) is not None:
            return self._drafted(jobs, draws)
        done = [job for job in jobs if job.row.logits]
        sequences, counts = [job.sequence for job in done], [job.row.logits for job in done]
        wanted = [sequence.wanted for sequence in sequences]
        most = max((sequence.candidates_wanted for sequence in sequences), default=1)
        if self._runner.draws:
            most = min(most, self._vocab_size)
            stepped = self._runner.step(rows, _plain_draws(wanted, counts, most), min(most, MOST_RANKED))
        else:
            logits = self._runner.run(rows)
        for job in jobs:
            job.sequence.trunk.wrote(job.row, job.sequence.ids)
        if self._runner.draws:
            return self._stepped(sequences, counts, wanted, stepped, most)
        return self._answered(sequences, counts, wanted, logits, most)

    def trees(self, now: float, sequences: Sequence[DraftSequence]) -> Answered:
        """One more token for every branch, or all up to the next table that is due."""
        items = [sequence.branch_items() for sequence in sequences]
        counts = [len(part) for part in items]
        self._begin("tree", now, len(sequences), sum(counts), False)
        wanted = [sequence.wanted for sequence in sequences]
        branches = [item for part in items for item in part]
        if not self._runner.draws:
            return self._answered(sequences, counts, wanted, self._runner.run_branches(branches), 1)
        draws = _plain_draws(wanted, counts, 1)
        steps = min(sequence.depths_to_due for sequence in sequences)
        known = [draw for draw in draws if draw is not None]
        if steps > 1 and len(known) == len(draws):
            ids = self._runner.grow_on(branches, known, steps)
            if ids is not None:
                self._took(steps)
                return self._grown(sequences, ids)
        return self._stepped(sequences, counts, wanted, self._runner.grow(branches, draws), 1)

    def end(self, now: float | None) -> draft_pb2.DraftTiming | None:
        """The results of the last pass are taken in at monotonic time `now`, seconds; None without one, or without a
        time."""
        timing, self._running = self._running, None
        if timing is None or now is None:
            return None
        timing.step_ms = (now - self._began) * 1000.0 / self._steps
        self._tracer.span(
            "engine", self._kind, self._began, now, rows=timing.rows, tokens=timing.tokens, steps=self._steps
        )
        return timing

    def _begin(self, kind: str, now: float, rows: int, tokens: int, prefill: bool, asked: bool = False) -> None:
        self.count += 1
        self._kind = kind
        self._began = now
        self._steps = 1
        self._running = draft_pb2.DraftTiming(rows=rows, tokens=tokens, prefill=prefill, asked=asked)

    def _took(self, steps: int) -> None:
        """The pass was so many steps behind one another."""
        self.count += steps - 1
        self._steps = steps

    # Several tokens without the host

    def _proposals(self, jobs: Sequence[TrunkJob]) -> list[PlainDraw] | None:
        """The draws of just-in-time proposals of which several tokens can be drafted at once; None where anything else
        is to be done, or a single token."""
        draws = []
        for job in jobs:
            sequence = job.sequence
            if sequence.work is not Work.PROPOSE or job.row.logits != 1 or sequence.round.to_draft < 2:
                return None
            draw = sequence.wanted[0].plain
            if draw is None:
                return None
            draws.append(draw)
        return draws

    def _drafted(self, jobs: Sequence[TrunkJob], draws: Sequence[PlainDraw]) -> Answered:
        steps = min(job.sequence.round.to_draft for job in jobs)
        ends = [job.row.start + len(job.row.ids) for job in jobs]
        try:
            for job, end in zip(jobs, ends, strict=True):
                job.sequence.trunk.table.ensure(end + steps - 1)
        except OutOfBlocks:
            steps = 1
        ids = self._runner.draft([job.row for job in jobs], draws, steps)
        self._took(steps)
        for number, (job, end) in enumerate(zip(jobs, ends, strict=True)):
            trunk, committed = job.sequence.trunk, job.sequence.ids
            trunk.wrote(job.row, committed)
            if steps > 1:
                trunk.wrote(RunRow([drawn[number] for drawn in ids[:-1]], end, trunk.table), committed)
        return self._one_by_one(jobs, ids)

    def _one_by_one(self, jobs: Sequence[TrunkJob], ids: Sequence[Sequence[int]]) -> Answered:
        refused = set()
        for drawn_now in ids:
            for number, job in enumerate(jobs):
                # A token that ends the text ends the proposal with it.
                if job.sequence.round.to_draft and number not in refused:
                    answer = ranked(drawn_now[number : number + 1])
                    if not answer.ids:
                        refused.add(number)
                    yield job.sequence, [answer]

    def _grown(self, sequences: Sequence[DraftSequence], ids: Sequence[Sequence[int]]) -> Answered:
        paths = [path for sequence in sequences for path in sequence.growing]
        column = {id(path): number for number, path in enumerate(paths)}
        for drawn_now in ids:
            for sequence in sequences:
                if growing := sequence.growing:
                    yield sequence, [ranked((drawn_now[column[id(path)]],)) for path in growing]

    # One token

    def _stepped(
        self,
        sequences: Sequence[DraftSequence],
        counts: Sequence[int],
        wanted: Sequence[Sequence[Wanted]],
        stepped: Stepped,
        most: int,
    ) -> Answered:
        """counts: rows of logits of each sequence, of which it may want only the first ones."""
        asked = [one for part in wanted for one in part]
        answers = stepped_answers(stepped, asked, _places(counts, wanted), most, self._vocab_size)
        return _shared_out(sequences, wanted, answers)

    def _answered(
        self,
        sequences: Sequence[DraftSequence],
        counts: Sequence[int],
        wanted: Sequence[Sequence[Wanted]],
        logits: Tensor,
        most: int,
    ) -> Answered:
        places = _places(counts, wanted)
        if not places:
            return iter(())
        part = logits if len(places) == len(logits) else logits[places]
        asked = [one for part in wanted for one in part]
        return _shared_out(sequences, wanted, drawn(part, asked, most, self._vocab_size))


def _plain_draws(wanted: Sequence[Sequence[Wanted]], counts: Sequence[int], most: int) -> list[PlainDraw | None]:
    """One for each row of logits, None where it is not plain or not wanted, or has too many candidates to find."""
    if most > MOST_RANKED:
        return [None] * sum(counts)
    return [
        part[i].plain if i < len(part) else None
        for part, count in zip(wanted, counts, strict=True)
        for i in range(count)
    ]


def _places(counts: Sequence[int], wanted: Sequence[Sequence[Wanted]]) -> list[int]:
    """The rows of logits that are wanted."""
    starts = itertools.accumulate(counts, initial=0)
    return [start + i for start, part in zip(starts, wanted, strict=False) for i in range(len(part))]


def _shared_out(
    sequences: Sequence[DraftSequence], wanted: Sequence[Sequence[Wanted]], answers: Sequence[Drawn]
) -> Answered:
    left = iter(answers)
    return (
        (sequence, list(itertools.islice(left, len(part)))) for sequence, part in zip(sequences, wanted, strict=True)
    )
