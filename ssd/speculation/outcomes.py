"""Outcome tables: for each anticipated outcome of one round, the proposal that would follow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ssd.speculation.law import Laws, check_laws
from ssd.speculation.proposal import Continuation


@dataclass(frozen=True, slots=True)
class Branch:
    """Outcome (accepted, token) of a round, and the draft tokens `ids` that would follow it (they may still be few).

    laws   what each of ids was drawn from; () = point masses
    rank   place of `token` among the candidates for this acceptance length, 1 = likeliest; 0 = unknown
    """

    accepted: int
    token: int
    ids: tuple[int, ...] = ()
    laws: Laws = ()
    rank: int = 0

    def __post_init__(self) -> None:
        check_laws(self.ids, self.laws)

    @property
    def key(self) -> tuple[int, int]:
        return self.accepted, self.token

    @property
    def continuation(self) -> Continuation:
        """What follows the outcome."""
        return Continuation(self.ids, self.laws, self.rank)

    def cut(self, depth: int) -> Branch:
        """The first `depth` tokens."""
        return Branch(self.accepted, self.token, self.ids[:depth], self.laws[:depth], self.rank)

    def deepened(self, other: Branch) -> Branch:
        """This branch, or what it becomes with another one of the same outcome: the deeper one where no law is known.

        Tokens that were drawn from laws are only ever continued, never exchanged for others because those are more.
        """
        if not self.laws and not other.laws:
            return other if len(other.ids) > len(self.ids) else self
        deeper = self.continuation.extended(other.continuation)
        return self if deeper is None else Branch(self.accepted, self.token, deeper.ids, deeper.laws, deeper.rank)


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
            by_key[branch.key] = branch if known is None else known.deepened(branch)
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

    def following(self, committed: Sequence[int], *, impartial: bool = False) -> Continuation | None:
        """The prediction for what follows `committed`, the ids committed since base_len; None on a miss.

        A branch answers when it names the outcome and its ids begin with whatever was committed after that; the
        proposal answers while the committed ids are a part of it. The longest answer wins. A known outcome with
        nothing grown behind it yet is a miss.

        impartial   for rejection verification, where drafted tokens must not be chosen by what was drawn: the answer
                    of the branch with the most accepted tokens wins. The proposal never answers, as the laws of its
                    tokens are not known here
        """
        text = tuple(committed)
        answers = [_rest(branch, len(text)) for branch in self._matching(text)]
        answers = [answer for answer in answers if answer.ids]
        if impartial:
            return answers[-1] if answers else None
        if self.proposal[: len(text)] == text and len(self.proposal) > len(text):
            answers.append(Continuation(self.proposal[len(text) :]))
        return max(answers, key=lambda answer: len(answer.ids), default=None)

    def lookup(self, committed: Sequence[int]) -> tuple[int, ...] | None:
        """The ids of `following`."""
        answer = self.following(committed)
        return answer.ids if answer is not None else None

    def merged_with(self, other: OutcomeTable) -> OutcomeTable:
        """Union of two tables of one round; see Branch.deepened for an outcome that both know.

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


def _rest(branch: Branch, committed: int) -> Continuation:
    """What is left of a branch after that many tokens since its base, its outcome among them."""
    since = committed - branch.accepted - 1
    return branch.continuation.after(since) if since else branch.continuation
