"""One sequence that is drafted for: what is committed, what is in flight, and what to do next about it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from draft_service.tree import Path, Tree
from draft_service.trunk import Trunk
from ssd.runtime.runner import BranchItem, RunRow
from ssd.speculation.branching import candidates_needed, plan_branches
from ssd.speculation.fan_out import FanOut
from ssd.speculation.finish import StopRules
from ssd.speculation.outcomes import OutcomeTable
from ssd.speculation.proposal import Proposal
from ssd.speculation.sampling import DrawRow, SamplingParams, TokenHistory, row_after

ANYTIME_FROM = 4
"""Tables of at least this depth are sent once more at half of it: half a proposal in time beats a whole one too
late."""


class Work(Enum):
    """What a sequence waits for."""

    PROPOSE = "the next token of a just-in-time proposal"
    ROOT = "the logits after the proposal in flight, which choose the branches"
    GROW = "the next token of every branch"
    WARM = "the KV of its committed tokens"
    NONE = "news from the target"


@dataclass(frozen=True)
class Plan:
    """What was asked for when the sequence was opened.

    k: longest proposal · tables: whether outcomes are anticipated at all · end: no token at this position or later is
    worth drafting (the sequence's own limit, or the draft's context)
    """

    params: SamplingParams
    rules: StopRules
    prompt_len: int
    k: int
    fan_out: FanOut
    tables: bool
    end: int

    @property
    def publish_at(self) -> tuple[int, ...]:
        """Depths below k at which a table is sent."""
        return (-(-self.k // 2),) if self.k >= ANYTIME_FROM else ()


@dataclass
class Round:
    """Everything drafted at one base; dropped as a whole when the target's outcome arrives.

    `proposal` is in flight at the target, or on its way there. While `to_draft` > 0 it is still being drafted, that
    many tokens are to come, and the target waits for it.
    """

    base_len: int
    ticket: int = 0
    """Order of arrival among all sequences' rounds: older ones are served first."""
    proposal: tuple[int, ...] = ()
    to_draft: int = 0
    wants_table: bool = False
    tree: Tree | None = None
    table: OutcomeTable | None = None

    def known(self, committed: Sequence[int]) -> tuple[int, ...]:
        """What this round has drafted to follow `committed`, the ids committed since its base; () where that is
        nothing."""
        table = self.table or (self.tree.table() if self.tree is not None else None)
        return (table or OutcomeTable(self.base_len, self.proposal, 0, ())).lookup(committed) or ()

    def give_up_table(self) -> None:
        """Free the scratch blocks. What has been drafted stays known; nothing is added to it."""
        if self.tree is not None:
            self.table = self.tree.table() if self.tree.depth > 0 else None
            self.tree.release()
        self.tree, self.wants_table = None, False


@dataclass
class DraftSequence:
    """State of one sequence. Everything that runs a model or draws a token is the engine's; everything decided is
    here."""

    stream: int
    number: int
    plan: Plan
    ids: list[int]
    trunk: Trunk
    history: TokenHistory = field(init=False)
    round: Round = field(init=False)

    def __post_init__(self) -> None:
        self._restart_history()
        self.round = Round(len(self.ids))

    def _restart_history(self) -> None:
        self.history = TokenHistory(self.ids[: self.plan.prompt_len], self.ids[self.plan.prompt_len :])

    @property
    def base_len(self) -> int:
        return len(self.ids)

    @property
    def room(self) -> int:
        """Longest proposal that is worth making: the target draws the token after it itself."""
        return self.plan.end - self.base_len - 1

    @property
    def work(self) -> Work:
        """The next thing to do, if any."""
        if self.round.to_draft > 0:
            return Work.PROPOSE
        if self.round.tree is not None:
            return Work.GROW
        if self.round.wants_table:
            return Work.ROOT
        if len(self.trunk.ids) < self.base_len - 1:
            return Work.WARM
        return Work.NONE

    # News from the target

    def begin(
        self, ticket: int, *, need_proposal: bool, proposal: Sequence[int] = (), complete: bool = False
    ) -> Proposal | None:
        """Begin the round at the present base, `proposal` being what is known to follow. Returns what can be answered
        at once.

        need_proposal: the target waits. Then a `complete` proposal is the answer, also where it is short; one that is
        not complete is drafted on.
        """
        ids = tuple(proposal)[: max(0, min(self.plan.k, self.room))]
        to_draft = 0
        if need_proposal and not (complete and ids) and not self._ends(ids):
            to_draft = max(0, min(self.plan.k, self.room) - len(ids))
        self.round = Round(self.base_len, ticket, ids, to_draft, wants_table=self.plan.tables and self.room > 0)
        return Proposal(self.base_len, ids) if need_proposal and not to_draft else None

    def commit(self, ticket: int, ids: Sequence[int], *, need_proposal: bool, next_depth: int) -> Proposal | None:
        """The target's outcome: `ids` (at least one) follow the committed tokens. Returns what can be answered at
        once."""
        known, complete = self.round.known(ids), self.round.to_draft == 0
        self.round.give_up_table()
        self.ids.extend(ids)
        self.history.extend(ids)
        in_flight = known if need_proposal else known[:next_depth]
        return self.begin(ticket, need_proposal=need_proposal, proposal=in_flight, complete=complete)

    def remind(self, ticket: int) -> Proposal | None:
        """The target waits at the present base, and nothing was committed. Returns what can be answered at once."""
        if self.round.to_draft > 0:
            return None
        if self.round.proposal:
            return Proposal(self.base_len, self.round.proposal)
        self.round.give_up_table()
        return self.begin(ticket, need_proposal=True)

    def replace(self, ticket: int, ids: Sequence[int], *, need_proposal: bool) -> Proposal | None:
        """Other committed tokens than those believed in: begin anew."""
        self.round.give_up_table()
        self.ids = list(ids)
        self._restart_history()
        self.trunk.restart(self.ids)
        return self.begin(ticket, need_proposal=need_proposal)

    def close(self) -> None:
        """Give every block back."""
        self.round.give_up_table()
        self.trunk.release()

    # The trunk: proposals and roots

    def trunk_row(self, budget: int, *, whole: bool) -> RunRow | None:
        """The next row of the trunk within `budget` tokens. `whole`: the tokens that need logits may exceed it, so that
        a step always does something. None where the budget does not suffice."""
        if self.work is Work.WARM:
            committed, ahead, wanted = self.ids[:-1], self.round.proposal[:0], 0
        else:
            committed, ahead, wanted = self.ids, self.round.proposal, self._rows_wanted
        self.trunk.follow(committed, ahead)
        return self.trunk.row(committed, ahead, wanted, max(budget, wanted) if whole else budget)

    @property
    def _rows_wanted(self) -> int:
        return 1 if self.work is Work.PROPOSE else len(self.round.proposal) + 1

    def draw_rows(self) -> list[DrawRow]:
        """What the logits of the trunk's last row are for: one token of a proposal, or K + 1 candidate lists."""
        plan, ahead = self.plan, self.round.proposal
        first = len(ahead) + 1 - self._rows_wanted
        return [row_after(plan.params, self.history, ahead[:j], plan.rules) for j in range(first, len(ahead) + 1)]

    @property
    def candidates_wanted(self) -> int:
        """How many ids are needed of each of `draw_rows`."""
        return 1 if self.work is Work.PROPOSE else candidates_needed(self._allocation)

    def propose(self, token: int) -> Proposal | None:
        """Append a token to the proposal; returns it when it is complete."""
        self.round.proposal += (token,)
        self.round.to_draft = 0 if self._ends((token,)) else self.round.to_draft - 1
        return None if self.round.to_draft else Proposal(self.base_len, self.round.proposal)

    def root(self, candidates: Sequence[Sequence[int]]) -> None:
        """Choose the branches from candidates[k] = ids after k acceptances, best first. There may be none worth
        growing."""
        ending = self.plan.rules.ending_ids
        outcomes = plan_branches(candidates, self.round.proposal, self._allocation)
        paths = [Path(k, token, min(self.plan.k, self.room - k - 1)) for k, token in outcomes if token not in ending]
        paths = [path for path in paths if path.limit > 0]
        self.round.wants_table = False
        if paths:
            self.round.tree = Tree(self.base_len, self.round.proposal, paths, self.plan.publish_at)

    @property
    def _allocation(self) -> tuple[int, ...]:
        return self.plan.fan_out.allocate(len(self.round.proposal))

    def _ends(self, ids: Sequence[int]) -> bool:
        """Whether the generation ends with these ids, so that nothing after them is worth drafting."""
        return bool(ids) and ids[-1] in self.plan.rules.ending_ids

    # The tree

    @property
    def branches(self) -> int:
        """How many branches grow."""
        return len(self.round.tree.growing) if self.round.tree is not None else 0

    def branch_items(self) -> list[BranchItem]:
        """The newest token of each growing branch."""
        return list(self.round.tree.items(self.trunk.table)) if self.round.tree is not None else []

    def branch_rows(self) -> list[DrawRow]:
        """One row for each growing branch."""
        plan, tree = self.plan, self.round.tree
        if tree is None:
            return []
        return [row_after(plan.params, self.history, tree.text(path), plan.rules) for path in tree.growing]

    def grow(self, tokens: Sequence[int]) -> OutcomeTable | None:
        """Append one token to each growing branch; returns the table when it is due."""
        tree = self.round.tree
        if tree is None:
            return None
        tree.grow(tokens, self.plan.rules.ending_ids)
        due = tree.table() if tree.due else None
        if tree.finished:
            self.round.table, self.round.tree = tree.table(), None
        return due
