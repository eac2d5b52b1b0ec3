"""Everything drafted at one base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draft_service.tree import Tree
from ssd.speculation.law import Laws, point_mass
from ssd.speculation.outcomes import OutcomeTable
from ssd.speculation.proposal import Continuation, Proposal, Source

NOTHING = Continuation(())


@dataclass(frozen=True, slots=True)
class Flight:
    """What the target verifies next, as the router tells it.

    depth    length of the proposal in flight
    ids      the proposal itself where the draft may not know it, else ()
    source   where it came from
    """

    depth: int = 0
    ids: tuple[int, ...] = ()
    source: Source | None = None


@dataclass
class Round:
    """What is drafted at one base; dropped as a whole when the target's outcome arrives.

    head        the proposal in flight at the target, or on its way there
    beyond      what is known to follow it already, from a branch that had grown further than the target had heard of
    source      where the head came from; None without one
    certain     the head is known to be verified; a just-in-time proposal may come too late
    to_draft    while > 0 the head is still being drafted, that many tokens are to come, and the target waits for it
    allocation  F_0..F_K of the table; empty before it is known
    ranked      [k]: candidates for the token after k acceptances, best first; empty before they are known
    """

    base_len: int
    ticket: int = 0
    """Order of arrival among all sequences' rounds: older ones are served first."""
    head: Continuation = NOTHING
    beyond: Continuation = NOTHING
    source: Source | None = None
    certain: bool = True
    to_draft: int = 0
    wants_table: bool = False
    tree: Tree | None = None
    table: OutcomeTable | None = None
    allocation: tuple[int, ...] = ()
    ranked: tuple[tuple[int, ...], ...] = ()

    @property
    def proposal(self) -> Proposal:
        """The head as it travels."""
        return Proposal(self.base_len, self.head.ids, self.head.laws)

    @property
    def after_hit(self) -> bool:
        """Whether the head comes from a table."""
        return self.source in (None, Source.TABLE)

    def following(self, committed: Sequence[int], *, impartial: bool) -> Continuation:
        """What this round has drafted to follow `committed`, the ids committed since its base; no ids where that is
        nothing.

        impartial   for rejection, where the tokens in question must have no say in which are taken: a branch goes
                    before the head. Else the longest answer wins
        """
        known = joined(self.head, self.beyond)
        ahead = Proposal(self.base_len, known.ids, known.laws).following(committed)
        table = self.table or (self.tree.table() if self.tree is not None else None)
        branch = table.following(committed, impartial=impartial) if table is not None else None
        if impartial:
            return branch or ahead or NOTHING
        return max((found for found in (branch, ahead) if found), key=lambda found: len(found.ids), default=NOTHING)

    def give_up_table(self) -> None:
        """Free the scratch blocks. What has been drafted stays known; nothing is added to it."""
        if self.tree is not None:
            self.table = self.tree.table()
            self.tree.release()
        self.tree, self.wants_table = None, False


def joined(first: Continuation, then: Continuation) -> Continuation:
    """The tokens of both. Where only some have laws the others are point masses, which any token may be taken for."""
    if not first.laws and not then.laws:
        return Continuation(first.ids + then.ids)
    return Continuation(first.ids + then.ids, laws_of(first) + laws_of(then))


def laws_of(part: Continuation) -> Laws:
    """One law for each token: where none came with them, all are point masses."""
    return part.laws or tuple(point_mass(token) for token in part.ids)
