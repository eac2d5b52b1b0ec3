"""One outcome table while it grows: all branches of one round, one token deeper each step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ssd.runtime.blocks import BlockPool, BlockTable
from ssd.runtime.runner import BranchItem
from ssd.speculation.outcomes import Branch, OutcomeTable


@dataclass
class Path:
    """Outcome (accepted, token) and the draft tokens that follow it so far, at most `limit` of them.

    slots [limit]: where the KV of `token` and then of `ids` is written; the last id never needs one.
    """

    accepted: int
    token: int
    limit: int
    ids: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    ended: bool = False

    @property
    def growing(self) -> bool:
        return not self.ended and len(self.ids) < self.limit


class Tree:
    """The branches of one round at `base_len` with `proposal` in flight.

    A branch sees the trunk up to its accepted tokens and then its own tokens, whose KV lives in scratch blocks until
    the tree is finished or given up.
    """

    def __init__(
        self, base_len: int, proposal: Sequence[int], paths: Sequence[Path], publish_at: Sequence[int]
    ) -> None:
        """`publish_at`: depths at which the table is worth sending; it is sent when finished in any case."""
        self.base_len = base_len
        self.proposal = tuple(proposal)
        self.paths = tuple(paths)
        self.publish_at = frozenset(publish_at)
        self.depth = 0
        self.scratch: BlockTable | None = None

    @property
    def growing(self) -> list[Path]:
        """Branches that get a token in the next step."""
        return [path for path in self.paths if path.growing]

    @property
    def finished(self) -> bool:
        return not any(path.growing for path in self.paths)

    @property
    def due(self) -> bool:
        """Whether the table is to be sent at its present depth."""
        return self.depth > 0 and (self.finished or self.depth in self.publish_at)

    def reserve(self, pool: BlockPool) -> None:
        """Scratch blocks for all depths, once; raises OutOfBlocks and then holds none."""
        if self.scratch is not None:
            return
        scratch = BlockTable(pool)
        scratch.ensure(sum(path.limit for path in self.paths))
        self.scratch, start = scratch, 0
        for path in self.paths:
            path.slots = scratch.slots(start, start + path.limit)
            start += path.limit

    def release(self) -> None:
        """Give the scratch blocks back; the tree cannot grow any more."""
        if self.scratch is not None:
            self.scratch.release()
            self.scratch = None

    def items(self, trunk: BlockTable) -> Iterator[BranchItem]:
        """The newest token of every growing branch."""
        for path in self.growing:
            prefix = self.base_len + path.accepted
            grown = len(path.ids)
            newest = path.ids[-1] if path.ids else path.token
            yield BranchItem(newest, prefix + grown, trunk, prefix, path.slots[: grown + 1])

    def text(self, path: Path) -> tuple[int, ...]:
        """The tokens between the committed text and the branch's next one."""
        return (*self.proposal[: path.accepted], path.token, *path.ids)

    def grow(self, tokens: Sequence[int], ending_ids: frozenset[int]) -> None:
        """Append one token to each growing branch, in order; a branch that meets an ending id is complete."""
        for path, token in zip(self.growing, tokens, strict=True):
            path.ids.append(token)
            path.ended = token in ending_ids
        self.depth += 1
        if self.finished:
            self.release()

    def table(self) -> OutcomeTable:
        """What is known so far."""
        branches = tuple(Branch(path.accepted, path.token, tuple(path.ids)) for path in self.paths)
        return OutcomeTable(self.base_len, self.proposal, self.depth, branches)
