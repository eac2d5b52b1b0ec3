"""Proposals and their rebase onto tokens that were committed in the meantime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from ssd.speculation.law import Laws, check_laws


class Source(Enum):
    """Where a proposal came from."""

    TABLE = "table"  # the outcome was anticipated
    PROPOSAL = "proposal"  # drafted just in time, once the outcome was known
    NGRAM = "ngram"  # prompt lookup


@dataclass(frozen=True, slots=True)
class Continuation:
    """Draft tokens that follow some text, and the laws that they were drawn from.

    rank   the place that an outcome table gave to the last token of that text among the candidates; 0 = it did not
           end there, or no place is known
    """

    ids: tuple[int, ...]
    laws: Laws = ()
    rank: int = 0

    def __post_init__(self) -> None:
        check_laws(self.ids, self.laws)

    def cut(self, count: int) -> Continuation:
        """The first `count` tokens."""
        return Continuation(self.ids[:count], self.laws[:count], self.rank)

    def after(self, count: int) -> Continuation:
        """All but the first `count` tokens."""
        return Continuation(self.ids[count:], self.laws[count:])

    def extended(self, other: Continuation) -> Continuation | None:
        """These tokens and what `other` has behind the same ones; None when it has nothing or begins otherwise.

        Each token keeps the law that it was drawn from here, even if `other` drew the same token from another: which
        of two laws is taken must not depend on whether the tokens came out equal.
        """
        here = len(self.ids)
        if len(other.ids) <= here or other.ids[:here] != self.ids:
            return None
        if here and bool(self.laws) != bool(other.laws):
            return None
        return Continuation(other.ids, (*self.laws, *other.laws[here:]), self.rank or other.rank)


@dataclass(frozen=True, slots=True)
class Proposal:
    """Draft tokens `ids` to be verified after the first `base_len` tokens of the sequence (prompt included).

    laws   what each was drawn from; () = point masses
    """

    base_len: int
    ids: tuple[int, ...]
    laws: Laws = ()
    source: Source = field(default=Source.PROPOSAL, compare=False)

    def __post_init__(self) -> None:
        if self.base_len < 0 or any(token < 0 for token in self.ids):
            raise ValueError(f"a proposal has no negative base or token: base_len={self.base_len}, ids={self.ids}")
        check_laws(self.ids, self.laws)

    @property
    def reach(self) -> int:
        """Length of the text that it predicts, in tokens from base_len."""
        return len(self.ids)

    def cut(self, count: int) -> Proposal:
        """The first `count` tokens."""
        return Proposal(self.base_len, self.ids[:count], self.laws[:count], self.source)

    def agrees(self, committed: Sequence[int]) -> bool:
        """True if `committed` (ids since base_len) begins the predicted text."""
        return self.ids[: len(committed)] == tuple(committed)

    def following(self, committed: Sequence[int], *, impartial: bool = False) -> Continuation | None:
        """What it predicts after `committed`, the ids committed since base_len; None when that is nothing.

        There is only one answer, so it is impartial; see OutcomeTable.following.
        """
        if len(committed) >= len(self.ids) or not self.agrees(committed):
            return None
        return Continuation(self.ids, self.laws).after(len(committed))

    def lookup(self, committed: Sequence[int]) -> tuple[int, ...] | None:
        """The ids of `following`."""
        answer = self.following(committed)
        return answer.ids if answer is not None else None


def rebase(proposal: Proposal, base_len_now: int, committed_since: Sequence[int]) -> Proposal | None:
    """What is left of `proposal` at base_len_now, or None when it is stale.

    committed_since holds the tokens committed from proposal.base_len up to base_len_now. Stale: its first tokens
    differ from those, or nothing of it is left, or it stands on a base that this process has not reached. Raises
    ValueError when committed_since has another length than the two bases say.
    """
    advance = base_len_now - proposal.base_len
    if advance < 0:
        return None
    if len(committed_since) != advance:
        raise ValueError(f"{advance} tokens were committed since base {proposal.base_len}, got {len(committed_since)}")
    rest = proposal.following(committed_since)
    return Proposal(base_len_now, rest.ids, rest.laws, proposal.source) if rest is not None else None
