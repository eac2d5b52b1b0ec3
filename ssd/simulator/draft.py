"""The draft of a simulation: misses first, then roots and trees in turns, one forward pass at a time.

As in the draft service, what arrives during a pass is looked at after it, and finds everything that was drafted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ssd.simulator.anticipation import Anticipation
from ssd.simulator.events import EventQueue
from ssd.simulator.messages import Answer, Anticipated, Closed, News
from ssd.simulator.timing import StepTimer
from ssd.speculation.governor import Decision
from ssd.speculation.prediction import Mode
from ssd.speculation.proposal import Proposal

Allocate = Callable[[Decision, int, bool], tuple[int, ...]]
"""F_0..F_K from the decision in force, the length K in flight, and whether that came from a table."""


@dataclass(frozen=True, slots=True)
class DraftRules:
    """How tables reach the target.

    publish   "whole": when they are complete; "half": at half of their depth as well, from 4 tokens on; "each": after
              every pass
    push      False: tables stay with the draft and every proposal is asked for
    filled    tables hold the branches that cannot come true as well (slow, and the same result)
    """

    publish: str = "half"
    push: bool = True
    filled: bool = False

    def __post_init__(self) -> None:
        if self.publish not in ("whole", "half", "each"):
            raise ValueError(f"tables are published whole, half or each, not {self.publish!r}")

    def due(self, depth: int, limit: int) -> bool:
        if depth >= limit or self.publish == "each":
            return True
        return self.publish == "half" and limit >= 4 and depth == -(-limit // 2)


@dataclass(slots=True)
class _Sequence:
    news: News
    tree: Anticipation | None = None  # of the round in flight; None: nothing is anticipated
    drafted: int = 0  # tokens of a just-in-time proposal so far
    to_draft: int = 0
    owed: bool = False  # the target waits for the branch that is being grown
    fresh: int = 1  # committed tokens that the trunk has not computed

    @property
    def rooting(self) -> bool:
        return self.tree is not None and not self.tree.rooted

    @property
    def growing(self) -> bool:
        return self.tree is not None and self.tree.rooted and not self.tree.finished and self.tree.growing > 0


@dataclass
class SimulatedDraft:
    """Drafts for the sequences that `receive` tells of; what it says goes to `send`."""

    queue: EventQueue
    timer: StepTimer
    allocate: Allocate
    send: Callable[[list[Anticipated | Answer]], None]
    rules: DraftRules = field(default_factory=DraftRules)

    def __post_init__(self) -> None:
        self._live: dict[int, _Sequence] = {}
        self._inbox: list[News | Closed] = []
        self._busy = False
        self._trunks_ran_last = False

    def receive(self, messages: list[News | Closed]) -> None:
        """Messages of one target's step."""
        self._inbox += messages
        if not self._busy:
            self._go_on([])

    def _go_on(self, said: list[Anticipated | Answer]) -> None:
        inbox, self._inbox = self._inbox, []
        for message in inbox:
            if isinstance(message, Closed):
                self._live.pop(message.sequence, None)
            else:
                self._hear(message, said)
        if said:
            self.send(said)
        self._run()

    # News from the target

    def _hear(self, news: News, said: list[Anticipated | Answer]) -> None:
        before = self._live.get(news.sequence)
        state = self._live[news.sequence] = _Sequence(news)
        if before is not None:
            state.fresh = max(1, news.base_len - before.news.base_len)
        tree = before.tree if before is not None else None
        if not news.waiting:
            self._begin(state, news.in_flight, news.after_hit)
        elif tree is None or not self._answer_from(state, tree, said):
            self._miss(state, tree, said)

    def _answer_from(self, state: _Sequence, tree: Anticipation, said: list[Anticipated | Answer]) -> bool:
        """Give what is known of the outcome, or see to it that its branch grows; False when that is a miss."""
        news = state.news
        if tree.published:
            # The target waits, so nothing had reached it; it takes the first that does, and that is on its way.
            sent = tree.known(news.base_len, tree.published)
            if sent:
                self._begin(state, sent, True)
                return True
        known = tree.known(news.base_len)
        if known and (tree.finished or self.rules.publish != "whole"):
            said.append(Answer(news.sequence, Proposal(news.base_len, known), tree.fan_out, True))
            self._begin(state, known, True)
            return True
        if tree.rooted and not tree.anticipates():
            return False
        if tree.base_len + self._advance(tree) != news.base_len:
            return False  # more than one round has passed, and what is grown does not reach so far
        tree.chosen = tree.rooted
        state.tree, state.owed = tree, True
        return True

    def _advance(self, tree: Anticipation) -> int:
        return tree.text.accepted(tree.base_len, tree.in_flight) + 1

    def _miss(self, state: _Sequence, tree: Anticipation | None, said: list[Anticipated | Answer]) -> None:
        decision = state.news.decision
        just_in_time = decision.mode is Mode.SD or decision.fallback.value == "jit"
        if just_in_time and decision.k > 0:
            state.tree, state.owed, state.to_draft = None, False, decision.k
            return
        fan_out = tree.fan_out if tree is not None else ()
        said.append(Answer(state.news.sequence, Proposal(state.news.base_len, ()), fan_out, False))
        self._begin(state, (), False)

    def _begin(self, state: _Sequence, in_flight: tuple[int, ...], after_hit: bool) -> None:
        """The round at the present base: anticipate its outcomes, if tables are wanted."""
        news = state.news
        state.owed, state.to_draft, state.tree = False, 0, None
        if news.decision.mode is Mode.SSD:
            state.tree = Anticipation(
                news.text, news.base_len, in_flight, after_hit, news.decision.depth, filled=self.rules.filled
            )

    # Forward passes

    def _run(self) -> None:
        """Begin the next pass, if there is anything to do."""
        proposing = [state for state in self._live.values() if state.to_draft]
        rooting = [state for state in self._live.values() if state.rooting]
        growing = [state for state in self._live.values() if state.growing]
        if not proposing and growing and (self._trunks_ran_last or not rooting):
            self._trunks_ran_last = False
            branches = sum(state.tree.growing for state in growing if state.tree is not None)
            self._pass(len(growing), branches, lambda said: self._grown(growing, said))
        elif proposing or rooting:
            self._trunks_ran_last = True
            tokens = sum(1 if state.drafted else state.fresh for state in proposing)
            tokens += sum(1 + len(state.tree.in_flight) for state in rooting if state.tree is not None)
            self._pass(len(proposing) + len(rooting), tokens, lambda said: self._trunks(proposing, rooting, said))

    def _pass(self, rows: int, tokens: int, done: Callable[[list[Anticipated | Answer]], None]) -> None:
        self._busy = True

        def end() -> None:
            self._busy = False
            said: list[Anticipated | Answer] = []
            done(said)
            self._go_on(said)

        self.queue.after(self.timer(rows, tokens), end)

    def _trunks(self, proposing: list[_Sequence], rooting: list[_Sequence], said: list[Anticipated | Answer]) -> None:
        for state in proposing:
            state.drafted += 1
            state.to_draft -= 1
            if not state.to_draft:
                news = state.news
                ids = news.text.drafted(news.base_len, state.drafted)
                said.append(Answer(news.sequence, Proposal(news.base_len, ids), (), False))
                self._begin(state, ids, False)
        for state in rooting:
            tree = state.tree
            if tree is None:
                continue
            tree.fan_out = self.allocate(state.news.decision, len(tree.in_flight), tree.after_hit)
            if state.owed:
                tree.chosen = tree.anticipates()
                if not tree.chosen:
                    self._miss(state, tree, said)

    def _grown(self, growing: list[_Sequence], said: list[Anticipated | Answer]) -> None:
        for state in growing:
            tree = state.tree
            if tree is None:
                continue
            tree.depth += 1
            due = self.rules.due(tree.depth, tree.limit)
            if state.owed:
                if due:
                    self._owed(state, tree, said)
            elif due and self.rules.push:
                tree.published = tree.published or tree.depth
                said.append(Anticipated(state.news.sequence, tree.table(), tree.fan_out))

    def _owed(self, state: _Sequence, tree: Anticipation, said: list[Anticipated | Answer]) -> None:
        news = state.news
        ids = tree.known(news.base_len)
        said.append(Answer(news.sequence, Proposal(news.base_len, ids), tree.fan_out, True))
        self._begin(state, ids, True)
