"""Which rows run in a step, and with how many tokens each.

A row is the committed tokens whose KV is missing, and a proposal behind them: decoding, verification and prefill are
one thing. Every decoding row gets its one token first; proposals and prefill chunks share what is left of the budget.

Blocks: sequences start in the order of their arrival, and a row may take blocks only from younger ones, the youngest
first. So those that hold blocks are older than those that do not, the oldest always gets what it needs (admission made
sure that it fits alone), and every step that has anything to run makes progress. A row that finds nobody younger sits
the step out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ssd.runtime.blocks import BlockPool, OutOfBlocks
from ssd.runtime.draws import PlainDraw, drawn_plainly, plain_draw
from ssd.runtime.runner import RunRow
from ssd.speculation.proposal import Proposal
from ssd.speculation.sampling import DrawRow
from target_service.sequence import NO_PROPOSAL, LiveSequence


@dataclass(slots=True, eq=False)
class StepRow:
    """One sequence's part in a step: `tokens` of its pending ones, and behind the last of these the proposal."""

    sequence: LiveSequence
    tokens: int
    proposal: Proposal = field(default=NO_PROPOSAL)

    @property
    def query_tokens(self) -> int:
        return self.tokens + len(self.proposal.ids)

    @property
    def complete(self) -> bool:
        """No committed token is left out, so the step draws."""
        return self.tokens == self.sequence.pending

    @property
    def draws(self) -> int:
        """Tokens drawn: one behind each proposal token, and one behind the last committed token."""
        return len(self.proposal.ids) + 1 if self.complete else 0

    @property
    def plain(self) -> bool:
        """The step draws, and its draws need nothing but a temperature."""
        terms = self.sequence.terms
        if not self.complete or terms.rejection or self.sequence.generated < terms.rules.min_tokens:
            return False
        return drawn_plainly(terms.params)

    def plain_draws(self) -> list[PlainDraw | None]:
        """One for each of the draws, None throughout where they are not plain."""
        if not self.plain:
            return [None] * self.draws
        first = self.sequence.length
        return [plain_draw(self.sequence.terms.params, first + j) for j in range(self.draws)]

    def draw_rows(self) -> list[DrawRow]:
        """One for each of the draws of a complete row."""
        return self.sequence.draw_rows(self.proposal.ids)

    def run_row(self) -> RunRow:
        sequence = self.sequence
        ids = [*sequence.ids[sequence.computed : sequence.computed + self.tokens], *self.proposal.ids]
        return RunRow(ids, sequence.computed, sequence.table, self.draws)


class Scheduler:
    """Plans steps over `live`, which the engine keeps in order of arrival."""

    def __init__(self, live: dict[tuple[int, int], LiveSequence], pool: BlockPool, token_budget: int) -> None:
        self._live = live
        self._pool = pool
        self._budget = token_budget
        self.steps = 0
        self.preemptions = 0

    def wake_at(self, now: float) -> float | None:
        """When there is something to plan: at once unless every row waits for its draft."""
        if not self._live:
            return None
        if self._all_wait():
            return min(sequence.patience.wake_at(now) for sequence in self._live.values())
        return now

    def plan(self, now: float) -> list[StepRow]:
        """Rows of the step that starts at `now`, with slots for all of their tokens; empty when every row waits.

        As soon as one row can run, those that wait ride along without a proposal.
        """
        for sequence in self._live.values():
            sequence.patience.tick(now)
        if not self._live or self._all_wait():
            return []
        self.steps += 1
        prefilling = [sequence for sequence in self._live.values() if not sequence.decoding]
        rows = self._first_tokens(prefilling)
        self._proposals(rows, prefilling)
        self._chunks(rows, prefilling)
        for sequence in rows:
            sequence.runs_in(self.steps, now)
        return list(rows.values())

    def _all_wait(self) -> bool:
        return all(sequence.patience.waiting for sequence in self._live.values())

    def _first_tokens(self, prefilling: list[LiveSequence]) -> dict[LiveSequence, StepRow]:
        """One token for each decoding row and for the oldest prefill; those that ran last come last."""
        decoding = [sequence for sequence in self._live.values() if sequence.decoding]
        turns = sorted(decoding + prefilling[:1], key=lambda sequence: sequence.last_step)
        rows: dict[LiveSequence, StepRow] = {}
        for sequence in turns:
            if len(rows) == self._budget:
                break
            set_back = sequence not in prefilling and not sequence.holds_blocks  # by an older one's turn, just now
            if set_back or not self._started(sequence, spare=len(decoding)):
                continue
            if self._take_slots(sequence, sequence.computed + 1, rows):
                rows[sequence] = StepRow(sequence, 1)
        return rows

    def _proposals(self, rows: dict[LiveSequence, StepRow], prefilling: list[LiveSequence]) -> None:
        """Proposals as long as budget and free blocks allow; prefill keeps up to half of what is left."""
        left = self._budget - len(rows)
        wanted_by_prefill = sum(sequence.pending - (sequence in rows) for sequence in prefilling)
        left -= min(wanted_by_prefill, left // 2)
        for sequence, row in rows.items():
            if row.complete and sequence.proposal.ids:
                count = min(len(sequence.proposal.ids), left, self._room(sequence) - sequence.length)
                sequence.table.ensure(sequence.length + count)
                row.proposal = sequence.proposal.cut(count)
                left -= count

    def _chunks(self, rows: dict[LiveSequence, StepRow], prefilling: list[LiveSequence]) -> None:
        """Prefill, one sequence after the other: a later one starts only when nothing of the earlier ones is left."""
        left = self._budget - sum(row.query_tokens for row in rows.values())
        for sequence in prefilling:
            row = rows.get(sequence)
            if row is None:
                first = sequence is prefilling[0]
                if first or left == 0 or not self._started(sequence, spare=len(rows)):
                    return
                row = StepRow(sequence, 0)
            fits = self._room(sequence) - sequence.computed - row.tokens
            # A proposal stands behind the last pending token, so a row that has one has no token left to add.
            more = min(sequence.pending - row.tokens, left, fits)
            sequence.table.ensure(sequence.computed + row.tokens + more)
            row.tokens += more
            left -= more
            if row.tokens:
                rows[sequence] = row
            if not row.complete:
                return

    def _started(self, sequence: LiveSequence, spare: int) -> bool:
        """Whether the sequence holds its place. A new one must find room for all of its tokens, and `spare` blocks for
        the growth of others: half a prefill that is set back at once is work for nothing."""
        if sequence.holds_blocks:
            return True
        sequence.start()
        missing = -(-sequence.length // self._pool.block_size) - len(sequence.table.blocks)
        alone = not any(other.holds_blocks for other in self._live.values() if other is not sequence)
        if alone or missing + spare <= self._pool.free:
            return True
        sequence.set_back()
        return False

    def _take_slots(self, sequence: LiveSequence, length: int, rows: dict[LiveSequence, StepRow]) -> bool:
        """Slots for `length` tokens, if need be from younger sequences; False when there are none to be had."""
        while True:
            try:
                sequence.table.ensure(length)
                return True
            except OutOfBlocks:
                victim = self._youngest_holder()
                if victim is None or victim.number <= sequence.number:
                    return False
                rows.pop(victim, None)
                victim.set_back()
                self.preemptions += 1

    def _youngest_holder(self) -> LiveSequence | None:
        return next((sequence for sequence in reversed(self._live.values()) if sequence.holds_blocks), None)

    def _room(self, sequence: LiveSequence) -> int:
        """Tokens that the sequence's own and the free blocks could hold."""
        return sequence.table.capacity + self._pool.free * self._pool.block_size
