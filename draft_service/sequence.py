"""One sequence that is drafted for: what is committed, what is in flight, and what to do next about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from draft_service.drawing import Drawn, Saguaro, Wanted
from draft_service.experience import RANKS_KEPT, learn
from draft_service.round import NOTHING, Flight, Round, joined, laws_of
from draft_service.terms import Policy, Terms
from draft_service.tree import Path, Tree
from draft_service.trunk import Trunk
from ssd.runtime.runner import BranchItem, RunRow
from ssd.speculation.branching import candidate_lists, candidates_needed, plan_branches
from ssd.speculation.outcomes import OutcomeTable
from ssd.speculation.proposal import Continuation, Proposal, Source
from ssd.speculation.ranks import AcceptanceStatistics
from ssd.speculation.sampling import TokenHistory, row_after


class Work(Enum):
    """What a sequence waits for."""

    PROPOSE = "the next token of a just-in-time proposal"
    ROOT = "the logits after the proposal in flight, which choose the branches"
    GROW = "the next token of every branch"
    WARM = "the KV of its committed tokens"
    NONE = "news from the target"


@dataclass(eq=False)
class DraftSequence:
    """State of one sequence. Everything that runs a model or draws a token is the engine's; everything decided is
    here."""

    stream: int
    number: int
    terms: Terms
    opened: Policy
    ids: list[int]
    trunk: Trunk
    statistics: AcceptanceStatistics
    target: int = 0  # the router's number of the target that has it, where its laws go
    policy: Policy = field(init=False)
    history: TokenHistory = field(init=False)
    round: Round = field(init=False)

    def __post_init__(self) -> None:
        self.policy = self.opened
        self._restart_history()
        self.round = Round(len(self.ids))

    def _restart_history(self) -> None:
        self.history = TokenHistory(self.ids[: self.terms.prompt_len], self.ids[self.terms.prompt_len :])

    @property
    def base_len(self) -> int:
        return len(self.ids)

    @property
    def room(self) -> int:
        """Longest proposal that is worth making: the target draws the token after it itself."""
        return max(0, self.terms.end - self.base_len - 1)

    @property
    def work(self) -> Work:
        """The next thing to do, if any."""
        if self.policy.idle:
            return Work.NONE
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

    def begin(self, ticket: int, *, need_proposal: bool) -> Proposal | None:
        """The first round. Returns what can be answered at once, as do all that follow."""
        if need_proposal:
            return self._propose(ticket, NOTHING, complete=False)
        self._begin(ticket)
        return None

    def commit(self, ticket: int, ids: Sequence[int], *, need_proposal: bool, flight: Flight) -> Proposal | None:
        """The target's outcome: `ids` (at least one) follow the committed tokens. Branches that it rules out are grown
        no further, and what the chosen one has is the proposal, or a beginning of the next table."""
        learn(self.statistics, self.round, ids, rejection=self.terms.rejection)
        known, complete = self._following(ids), self.round.to_draft == 0
        self.round.give_up_table()
        self.ids.extend(ids)
        self.history.extend(ids)
        if need_proposal:
            return self._propose(ticket, known, complete=complete)
        self._follow(ticket, known, flight)
        return None

    def redirect(self, ticket: int, flight: Flight) -> None:
        """Late news at the present base: `flight.ids` have gone into flight."""
        if not self.round.to_draft and self.round.head.ids == flight.ids:
            self.round.source, self.round.certain = flight.source, True
            return
        known = joined(Continuation(flight.ids), self._following(flight.ids))
        self.round.give_up_table()
        self._follow(ticket, known, flight)

    def remind(self, ticket: int) -> Proposal | None:
        """The target waits at the present base, and nothing was committed."""
        if self.round.to_draft > 0:
            return None
        if self.round.head.ids:
            return self.round.proposal
        self.round.give_up_table()
        return self._propose(ticket, self.round.beyond, complete=True)

    def replace(self, ticket: int, ids: Sequence[int], *, need_proposal: bool) -> Proposal | None:
        """Other committed tokens than those believed in: begin anew."""
        self.round.give_up_table()
        self.ids = list(ids)
        self._restart_history()
        self.trunk.restart(self.ids)
        return self.begin(ticket, need_proposal=need_proposal)

    def follow_policy(self, policy: Policy) -> Proposal | None:
        """From now on drafting goes by `policy`; a change of numbers takes effect with the next round."""
        before, self.policy, self.round.allocation = self.policy, policy, ()
        owed = policy.idle and self.round.to_draft > 0
        if policy.idle:
            self.round.to_draft = 0
        elif before.idle and not self.trunk.table.blocks:
            self.trunk.restart(self.ids)
        if not policy.tables or policy.idle:
            self.round.give_up_table()
        elif (before.idle or not before.tables) and self.room and self.round.table is None:
            self.round.wants_table = self.round.tree is None
        return self.round.proposal if owed else None

    def close(self) -> None:
        """Give every block back."""
        self.round.give_up_table()
        self.trunk.release()

    def _following(self, ids: Sequence[int]) -> Continuation:
        return self.round.following(ids, impartial=self.terms.rejection)

    def _begin(self, ticket: int, head: Continuation = NOTHING, beyond: Continuation = NOTHING) -> None:
        wants_table = self.policy.tables and not self.policy.idle and self.room > 0
        self.round = Round(self.base_len, ticket, head, beyond, wants_table=wants_table)

    def _propose(self, ticket: int, known: Continuation, *, complete: bool) -> Proposal | None:
        """The target waits. A `complete` proposal is the answer, also where it is short; one that is not is drafted
        on."""
        limit = 0 if self.policy.idle else min(self.policy.k, self.room)
        self._begin(ticket, known.cut(limit))
        head = self.round.head.ids
        self.round.source, self.round.certain = Source.PROPOSAL, False
        if not (complete and head) and not self._ends(head):
            self.round.to_draft = limit - len(head)
        return None if self.round.to_draft else self.round.proposal

    def _follow(self, ticket: int, known: Continuation, flight: Flight) -> None:
        """The target verifies what the router says; `known` is what was drafted here to follow the committed tokens."""
        ids = flight.ids[: self.room] or known.ids[: min(flight.depth, self.room)]
        if known.ids[: len(ids)] == ids:
            self._begin(ticket, known.cut(len(ids)), known.after(len(ids)))
        else:
            self._begin(ticket, Continuation(ids))
        self.round.source = flight.source if ids else None

    # The trunk: proposals and roots

    def trunk_row(self, budget: int, *, whole: bool) -> RunRow | None:
        """The next row of the trunk within `budget` tokens. `whole`: the tokens that need logits may exceed it, so that
        a step always does something. None where the budget does not suffice."""
        committed, ahead, wanted = self.ids, self.round.head.ids, 1
        if self.work is Work.WARM:
            committed, ahead, wanted = self.ids[:-1], (), 0
        elif self.work is Work.ROOT:
            ahead += self._lead.ids[:-1]
            wanted = len(ahead) + 1
        self.trunk.follow(committed, ahead)
        return self.trunk.row(committed, ahead, wanted, max(budget, wanted) if whole else budget)

    @property
    def _lead(self) -> Continuation:
        """A branch after full acceptance of which more is known than its first token: it and what follows, as far as a
        branch may grow."""
        return self.round.beyond.cut(1 + max(0, self._branch_limit(len(self.round.head.ids))))

    def _branch_limit(self, accepted: int) -> int:
        return min(self.policy.depth, self.room - accepted - 1)

    @property
    def wanted(self) -> list[Wanted]:
        """What the logits of the next forward pass are for: the first ones of a trunk's row, or one of each branch."""
        terms, head = self.terms, self.round.head.ids
        if self.work is Work.PROPOSE:
            fan_outs = self._next_fan_outs(self.round.to_draft + len(head), after_hit=False)
            return [self._draw(head, len(head), fan_outs)]
        if self.work is Work.ROOT:
            texts = [head[:k] for k in range(len(head) + 1)]
            return [Wanted(row_after(terms.ranking, self.history, text, terms.rules)) for text in texts]
        if self.round.tree is None:
            return []
        tree, fan_outs = self.round.tree, self._next_fan_outs(self.policy.depth, after_hit=True)
        return [self._draw(tree.text(path), len(path.ids), fan_outs) for path in tree.growing]

    @property
    def candidates_wanted(self) -> int:
        """How many ids are needed of each of `wanted`."""
        if self.work is not Work.ROOT:
            return 1
        return max(RANKS_KEPT + 1, candidates_needed(self._allocation, self.policy.part, self.policy.parts))

    def _draw(self, text: Sequence[int], place: int, fan_outs: Sequence[int]) -> Wanted:
        """The draw of the token after `text`, which is token `place` (from 0) of its proposal."""
        terms = self.terms
        scaled = place < len(fan_outs)
        law = Saguaro(fan_outs[place] * self.policy.parts, terms.scale) if scaled else Saguaro()
        return Wanted(row_after(terms.params, self.history, text, terms.rules), law if terms.rejection else None)

    def _next_fan_outs(self, depth: int, *, after_hit: bool) -> tuple[int, ...]:
        """F_0..F_depth of the round that verifies the proposal now drafted; () where no law depends on it."""
        if self.terms.scale == 1.0 or not self.policy.tables:
            return ()
        return self.policy.fan_out.allocate(depth, after_hit)

    def take(self, drawn: Sequence[Drawn]) -> Proposal | OutcomeTable | None:
        """The answers to `wanted`, each of at least one id. Returns what is now worth sending."""
        if self.work is Work.PROPOSE:
            return self._append(drawn[0])
        return self._root([one.ids for one in drawn]) if self.work is Work.ROOT else self._grow(drawn)

    def _append(self, drawn: Drawn) -> Proposal | None:
        laws = (drawn.law,) if drawn.law is not None else ()
        self.round.head = joined(self.round.head, Continuation(drawn.ids[:1], laws))
        self.round.to_draft = 0 if self._ends(drawn.ids[:1]) else self.round.to_draft - 1
        return None if self.round.to_draft else self.round.proposal

    def _root(self, ranked: Sequence[Sequence[int]]) -> OutcomeTable | None:
        """Choose the branches from ranked[k] = ids after k acceptances, best first. There may be none worth growing."""
        head, policy, lead = self.round.head.ids, self.policy, self._lead
        self.round.ranked = tuple(candidate_lists(ranked, head))
        paths: list[Path] = []
        for accepted, token, rank in plan_branches(ranked, head, self._allocation, policy.part, policy.parts):
            limit = self._branch_limit(accepted)
            if token not in self.terms.rules.ending_ids and limit > 0:
                path = Path(accepted, token, limit, rank)
                if accepted == len(head) and lead.ids[:1] == (token,):
                    path.ids = list(lead.ids[1:])
                    path.laws = list(laws_of(lead)[1:]) if self.terms.rejection else []
                    path.on_trunk, path.ended = len(path.ids), self._ends(lead.ids)
                paths.append(path)
        self.round.wants_table = False
        if not paths:
            return None
        self.round.tree = Tree(self.base_len, head, paths, policy.publish_at)
        return self._table_due()

    @property
    def _allocation(self) -> tuple[int, ...]:
        """F_0..F_K of the table; asked for once, since what a rule says may change with every question."""
        if not self.round.allocation:
            self.round.allocation = self.policy.fan_out.allocate(len(self.round.head.ids), self.round.after_hit)
        return self.round.allocation

    def _ends(self, ids: Sequence[int]) -> bool:
        """Whether the generation ends with these ids, so that nothing after them is worth drafting."""
        return bool(ids) and ids[-1] in self.terms.rules.ending_ids

    # The tree

    @property
    def branches(self) -> int:
        """How many branches grow."""
        return len(self.growing)

    @property
    def growing(self) -> list[Path]:
        """Branches that get a token in the next step."""
        return self.round.tree.growing if self.round.tree is not None else []

    @property
    def depths_to_due(self) -> int:
        """Depths that the branches can grow before their table is worth sending."""
        return self.round.tree.depths_to_due if self.round.tree is not None else 0

    def branch_items(self) -> list[BranchItem]:
        """The newest token of each growing branch."""
        return list(self.round.tree.items(self.trunk.table)) if self.round.tree is not None else []

    def _grow(self, drawn: Sequence[Drawn]) -> OutcomeTable | None:
        if self.round.tree is not None:
            self.round.tree.grow(drawn, self.terms.rules.ending_ids)
        return self._table_due()

    def _table_due(self) -> OutcomeTable | None:
        """The table if it is worth sending now."""
        tree = self.round.tree
        if tree is None:
            return None
        due = tree.table() if tree.due else None
        if tree.finished:
            self.round.table, self.round.tree = tree.table(), None
        return due
