"""One round as the draft sees it: what is in flight, and the tree of outcomes that grows meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ssd.simulator.text import Text
from ssd.speculation.outcomes import Branch, OutcomeTable

_WRONG = 3


@dataclass(slots=True)
class Anticipation:
    """The tree for the round that verifies `in_flight` at base_len.

    limit     tokens to grow behind each outcome
    fan_out   F_0..F_K, () until the root pass has chosen the branches
    depth     tokens grown so far
    published depth that was sent first, 0 = nothing was sent
    chosen    the outcome is known, and only its branch grows on
    filled    keep branches that cannot come true as well; else they only cost time, and are left out of the tables
    """

    text: Text
    base_len: int
    in_flight: tuple[int, ...]
    after_hit: bool
    limit: int
    fan_out: tuple[int, ...] = ()
    depth: int = 0
    published: int = 0
    chosen: bool = False
    filled: bool = False

    @property
    def rooted(self) -> bool:
        return bool(self.fan_out)

    @property
    def finished(self) -> bool:
        return self.rooted and self.depth >= self.limit

    @property
    def growing(self) -> int:
        """Branches in the next pass."""
        return 1 if self.chosen else sum(self.fan_out)

    def table(self) -> OutcomeTable:
        """As far as it has grown."""
        branches = self._imagined() if self.filled else []
        true = self._true_branch()
        if true is not None:
            branches.append(true)
        return OutcomeTable(self.base_len, self.in_flight, self.depth, tuple(branches))

    def anticipates(self) -> bool:
        """Whether the round's true outcome is among the branches."""
        return self._true_branch() is not None

    def known(self, base_len: int, depth: int | None = None) -> tuple[int, ...]:
        """What has been drafted to follow the first base_len tokens, or had been when the tree was of `depth`, by the
        real table's own rule."""
        tree = self if depth is None else replace(self, depth=depth)
        return tree.table().lookup(self.text.ids(self.base_len, base_len)) or ()

    def _true_branch(self) -> Branch | None:
        if not self.rooted:
            return None
        accepted = self.text.accepted(self.base_len, self.in_flight)
        place = self.text.place(self.base_len, self.in_flight, accepted)
        if place > self.fan_out[accepted]:
            return None
        after = self.base_len + accepted + 1
        return Branch(accepted, self.text.token(after - 1), self.text.drafted(after, self.depth), rank=place)

    def _imagined(self) -> list[Branch]:
        accepted = self.text.accepted(self.base_len, self.in_flight)
        place = self.text.place(self.base_len, self.in_flight, accepted)
        wrong = (_WRONG,) * self.depth
        return [
            Branch(k, 2 * rank + 1, wrong, rank=rank)
            for k, fan_out in enumerate(self.fan_out)
            for rank in range(1, fan_out + 1)
            if (k, rank) != (accepted, place)
        ]
