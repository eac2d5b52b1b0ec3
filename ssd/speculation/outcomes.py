"""Outcome tables: for each anticipated outcome of one round, the proposal that would follow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Branch:
    """Outcome (accepted, token) of a round, and the draft tokens `ids` that would follow it (they may still be few)."""

    accepted: int
    token: int
    ids: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[int, int]:
        return self.accepted, self.token


@dataclass(frozen=True, slots=True)
class OutcomeTable:
    """All branches of one sequence for the round that verifies `proposal` after the first `base_len` tokens.

    `depth` is the number of tokens that the draft has grown so far behind each outcome. Several tables of one round
    are brought together with `merged_with`. Raises ValueError for contents that no round can have, so that a message
    which was damaged on its way is refused as a whole.
    """

    base_len: int
    proposal: tuple[int, ...]
    depth: int
    branches: tuple[Branch, ...]
    _by_key: dict[tuple[int, int], Branch] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.base_len < 0 or self.depth < 0 or any(token < 0 for token in self.proposal):
            raise ValueError(f"an outcome table has no negative numbers: base_len={self.base_len}, depth={self.depth}")
        by_key: dict[tuple[int, int], Branch] = {}
        for branch in self.branches:
            if not 0 <= branch.accepted <= len(self.proposal):
                raise ValueError(f"{branch.accepted} accepted tokens of a proposal of {len(self.proposal)}")
            if branch.token < 0 or any(token < 0 for token in branch.ids):
                raise ValueError(f"a branch has no negative token: {branch}")
            known = by_key.get(branch.key)
            if known is None or len(branch.ids) > len(known.ids):
                by_key[branch.key] = branch
        object.__setattr__(self, "branches", tuple(by_key.values()))
        object.__setattr__(self, "_by_key", by_key)

    @property
    def reach(self) -> int:
        """The longest text, in tokens from base_len, that this table predicts."""
        behind = (branch.accepted + 1 + len(branch.ids) for branch in self.branches)
        return max(len(self.proposal), *behind) if self.branches else len(self.proposal)

    def paths(self) -> list[tuple[int, ...]]:
        """Every text that this table predicts after base_len: the proposal itself, then one per branch."""
        return [self.proposal] + [(*self.proposal[: b.accepted], b.token, *b.ids) for b in self.branches]

    def agrees(self, committed: Sequence[int]) -> bool:
        """True if `committed` (ids since base_len) begins one of the paths, so that deeper branches may still help."""
        text = tuple(committed)
        return self.proposal[: len(text)] == text or bool(self._matching(text))

    def lookup(self, committed: Sequence[int]) -> tuple[int, ...] | None:
        """The prediction for what follows `committed`, the ids committed since base_len; None on a miss.

        A branch answers when it names the outcome and its ids begin with whatever was committed after that; the
        proposal answers while the committed ids are a part of it. The longest answer wins. A known outcome with
        nothing grown behind it yet is a miss.
        """
        text = tuple(committed)
        answers = [branch.ids[len(text) - branch.accepted - 1 :] for branch in self._matching(text)]
        if self.proposal[: len(text)] == text:
            answers.append(self.proposal[len(text) :])
        return max(answers, key=len, default=()) or None

    def merged_with(self, other: OutcomeTable) -> OutcomeTable:
        """Union of two tables of one round; for an outcome that both know the deeper branch wins (this one on a tie).

        Raises ValueError when the tables are not of the same round.
        """
        if (self.base_len, self.proposal) != (other.base_len, other.proposal):
            raise ValueError(
                f"tables of different rounds: base {self.base_len} and {other.base_len}, or other proposals"
            )
        branches = self.branches + other.branches
        return OutcomeTable(self.base_len, self.proposal, max(self.depth, other.depth), branches)

    def _matching(self, text: tuple[int, ...]) -> list[Branch]:
        """Branches whose path `text` begins, and whose outcome it contains in full."""
        found: list[Branch] = []
        for accepted in range(min(len(self.proposal) + 1, len(text))):
            branch = self._by_key.get((accepted, text[accepted]))
            since = text[accepted + 1 :]
            if branch is not None and branch.ids[: len(since)] == since:
                found.append(branch)
            if accepted < len(self.proposal) and self.proposal[accepted] != text[accepted]:
                break
        return found
