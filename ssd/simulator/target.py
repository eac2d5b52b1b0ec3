"""The target of a simulation: its batch loop, with the rules for rows that hit, miss or wait.

The router stands beside it: its cache and the target's replica are one, decisions hold from the next round on, and all
delay lies on the way to the draft.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ssd.simulator.events import EventQueue
from ssd.simulator.messages import Answer, Anticipated, Closed, News
from ssd.simulator.policy import Policy
from ssd.simulator.text import Text
from ssd.simulator.timing import StepTimer
from ssd.simulator.totals import Totals
from ssd.speculation.cache import Source, SpeculationCache
from ssd.speculation.governor import Decision
from ssd.speculation.prediction import Fallback, Mode

GIVE_UP_AFTER = 3  # waits in a row that ran out, as in the target service


@dataclass(slots=True)
class Row:
    """One decoding sequence.

    leftover    the proposal is what was left of an answer on an older base
    expects     a table of the round now verified is on its way or has come
    judged      the allocation of that table, once it has come: then a miss is a miss
    unlearnt    accepted, depth, after_hit of the last round while nothing is known yet about the rank of its token
    """

    sequence: int
    text: Text
    base_len: int
    end: float
    decision: Decision
    proposal: tuple[int, ...] = ()
    after_hit: bool = False
    leftover: bool = False
    prefill: int = 0
    waiting: bool = False
    deadline: float | None = None
    timeouts: int = 0
    round_base: int = -1
    expects: bool = False
    judged: tuple[int, ...] = ()
    judged_base: int = -1
    unlearnt: tuple[int, int, bool] | None = None

    @property
    def decides(self) -> bool:
        """Ready by itself; the others ride along with a step that somebody else starts.

        Leftovers start no step while others wait for late tables: else, where tables are always a little late, rows
        that rode along without one would go on taking turns with those that did not.
        """
        return bool(self.proposal and not self.leftover) or bool(self.prefill) or self.decision.mode is Mode.AR


@dataclass
class SimulatedTarget:
    """Runs steps over its rows as soon as there is one that is ready.

    tell       takes the messages for the draft after each step
    finished   is called for a sequence that has reached its end
    """

    queue: EventQueue
    timer: StepTimer
    cache: SpeculationCache
    policy: Policy
    tell: Callable[[list[News | Closed]], None]
    finished: Callable[[int], None]
    totals: Totals = field(default_factory=Totals)
    proposal_wait_s: float = 0.25

    def __post_init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self._running = False
        self._wakes_at: float | None = None

    def open(self, sequence: int, text: Text, prompt_len: int, new_tokens: float, prefill: int) -> None:
        """A new sequence; `prefill` of its prompt tokens are computed in its first step."""
        decision = self.policy.decide(sequence, len(self.rows) + 1)
        row = self.rows[sequence] = Row(sequence, text, prompt_len, prompt_len + new_tokens, decision)
        row.prefill = prefill
        row.expects = decision.mode is Mode.SSD
        row.round_base = prompt_len
        self.tell([News(sequence, text, prompt_len, (), False, False, decision)])
        self.start()

    def close(self, sequence: int) -> None:
        """End a sequence at once."""
        if self.rows.pop(sequence, None) is not None:
            self.cache.forget(sequence)
            self.policy.forget(sequence)
            self.tell([Closed(sequence)])

    def receive(self, messages: list[Anticipated | Answer]) -> None:
        """One message of a draft."""
        for message in messages:
            row = self.rows.get(message.sequence)
            if row is None:
                continue
            if isinstance(message, Anticipated):
                self._anticipated(row, message)
            else:
                self._answered(row, message)
        self.start()

    def start(self) -> None:
        """Begin a step unless one runs or all there is to do is to wait."""
        if self._running or not self.rows:
            return
        now = self.queue.now
        for row in self.rows.values():
            self._tick(row, now)
        waiting = [row.deadline for row in self.rows.values() if row.waiting and row.deadline is not None]
        if waiting and not any(row.decides for row in self.rows.values()):
            self._wake(min(waiting))
            return
        rows = list(self.rows.values())
        tokens = 0
        for row in rows:
            row.waiting, row.deadline = False, None
            tokens += row.prefill or 1 + len(row.proposal)
        prefill = any(row.prefill > 1 for row in rows)
        seconds = self.timer(len(rows), tokens, prefill=prefill)
        self._running = True
        self.queue.after(seconds, lambda: self._end(rows))

    def _tick(self, row: Row, now: float) -> None:
        if not row.waiting:
            return
        if row.deadline is None:
            row.deadline = now + self.proposal_wait_s
        elif now >= row.deadline:
            row.waiting, row.deadline = False, None
            row.timeouts += 1

    def _wake(self, at: float) -> None:
        if self._wakes_at is not None and self.queue.now < self._wakes_at <= at:
            return
        self._wakes_at = at
        self.queue.after(at - self.queue.now, self.start)

    # The end of a step

    def _end(self, rows: list[Row]) -> None:
        self._running = False
        live = [row for row in rows if row.sequence in self.rows]
        for row in live:
            self._commit(row)
        going: list[Row] = []
        ended: list[int] = []
        for row in live:
            if row.base_len >= row.end:
                ended.append(row.sequence)
            else:
                row.decision = self.policy.decide(row.sequence, len(self.rows))
                self._next(row)
                going.append(row)
        # If a step begins at once, rows that would wait ride along, and the draft has to know what is really in flight.
        at_once = any(row.decides for row in going)
        if going:
            self.tell([self._news(row, at_once) for row in going])
        for sequence in ended:
            self.close(sequence)
            self.finished(sequence)
        self.start()

    def _commit(self, row: Row) -> None:
        """The outcome of a row's round, and what can be learnt from it."""
        self._learn_nothing(row)
        row.prefill = 0
        depth = len(row.proposal)
        accepted = row.text.accepted(row.base_len, row.proposal)
        self.totals.round(accepted, depth, row.after_hit, row.decision)
        row.unlearnt = (accepted, depth, row.after_hit)
        row.round_base = row.base_len
        row.base_len += accepted + 1
        if row.judged_base == row.round_base:
            self._learn(row, row.judged)
        elif not row.expects:
            self._learn_nothing(row)

    def _learn(self, row: Row, fan_out: tuple[int, ...]) -> None:
        """The rank of the last round's token, as far as a table of that round shows it."""
        if row.unlearnt is None:
            return
        accepted, depth, after_hit = row.unlearnt
        row.unlearnt = None
        listed = fan_out[accepted] if accepted < len(fan_out) else None
        in_flight = row.text.ids(row.round_base, row.round_base + accepted) + (1,) * (depth - accepted)
        place = row.text.place(row.round_base, in_flight, accepted)
        rank = place if listed is not None and place <= listed else None
        self.policy.observe(row.sequence, accepted, depth, rank, listed, after_hit)

    def _learn_nothing(self, row: Row) -> None:
        if row.unlearnt is not None:
            accepted, depth, after_hit = row.unlearnt
            row.unlearnt = None
            self.policy.observe(row.sequence, accepted, depth, None, None, after_hit)

    def _next(self, row: Row) -> None:
        """What the row verifies next, or whether it waits."""
        decision = row.decision
        row.proposal, row.after_hit, row.leftover = (), False, False
        self._look_up(row)
        if not row.proposal and decision.mode is Mode.SSD and decision.fallback is Fallback.NGRAM:
            row.proposal = row.text.looked_up(row.base_len, decision.k)
        late = row.expects and row.judged_base != row.round_base
        if (row.leftover or not row.proposal) and row.timeouts < GIVE_UP_AFTER:
            row.waiting = self._just_in_time(row) or (decision.mode is Mode.SSD and late)
        row.expects = decision.mode is Mode.SSD

    def _news(self, row: Row, at_once: bool) -> News:
        waiting = row.waiting and (self._just_in_time(row) or not at_once)
        in_flight = () if waiting else row.proposal
        return News(row.sequence, row.text, row.base_len, in_flight, row.after_hit, waiting, row.decision)

    def _just_in_time(self, row: Row) -> bool:
        """Whether the draft makes a proposal for an outcome that it did not anticipate."""
        return row.decision.mode is Mode.SD or (not row.proposal and row.decision.fallback is Fallback.JIT)

    def _look_up(self, row: Row) -> bool:
        """Take what the cache knows of the row's next tokens."""
        found = self.cache.next_proposal(row.sequence, row.base_len, lambda base: row.text.ids(base, row.base_len))
        if found is None:
            return False
        longest = max(row.decision.k, row.decision.depth) or len(found.ids)
        row.proposal, row.after_hit = found.ids[:longest], found.source is Source.TABLE
        row.leftover = found.base_len < row.round_base
        row.waiting, row.deadline, row.timeouts = False, None, 0
        return True

    # What the draft says

    def _anticipated(self, row: Row, message: Anticipated) -> None:
        self.cache.put(row.sequence, message.table)
        base = message.table.base_len
        if base in (row.round_base, row.base_len):
            row.judged, row.judged_base = message.fan_out, base
        if base == row.round_base != row.base_len:
            self._learn(row, message.fan_out)
        if row.waiting:
            self._look_up(row)
            judged = row.judged_base == row.round_base
            # The table is there. Without an answer in it, only a just-in-time proposal is still worth waiting for.
            row.waiting = (row.leftover or not row.proposal) and (not judged or self._just_in_time(row))

    def _answered(self, row: Row, message: Answer) -> None:
        if message.proposal.base_len == row.base_len and message.fan_out:
            self._learn(row, message.fan_out)
        if message.proposal.ids:
            self.cache.put_proposal(row.sequence, message.proposal)
        if row.waiting and message.proposal.base_len == row.base_len:
            if self._look_up(row) and not row.leftover:
                row.after_hit = message.from_table
            row.waiting, row.deadline = False, None
