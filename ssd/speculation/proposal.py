"""Proposals and their rebase onto tokens that were committed in the meantime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Proposal:
    """Draft tokens `ids` to be verified after the first `base_len` tokens of the sequence (prompt included)."""

    base_len: int
    ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.base_len < 0 or any(token < 0 for token in self.ids):
            raise ValueError(f"a proposal has no negative base or token: base_len={self.base_len}, ids={self.ids}")

    @property
    def reach(self) -> int:
        """Length of the text that it predicts, in tokens from base_len."""
        return len(self.ids)

    def agrees(self, committed: Sequence[int]) -> bool:
        """True if `committed` (ids since base_len) begins the predicted text."""
        return self.ids[: len(committed)] == tuple(committed)

    def lookup(self, committed: Sequence[int]) -> tuple[int, ...] | None:
        """What it predicts after `committed`, the ids committed since base_len; None when that is nothing."""
        return (self.ids[len(committed) :] or None) if self.agrees(committed) else None


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
    rest = proposal.lookup(committed_since)
    return Proposal(base_len_now, rest) if rest is not None else None
