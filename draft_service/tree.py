"""One outcome table while it grows: all branches of one round, one token deeper each step."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from draft_service.drawing import Drawn
from ssd.runtime.blocks import BlockPool, BlockTable
from ssd.runtime.runner import BranchItem
from ssd.speculation.law import Law
from ssd.speculation.outcomes import Branch, OutcomeTable


@dataclass
class Path:
    """Outcome (accepted, token) and the draft tokens that follow it so far, at most `limit` of them.

    rank       the token's place among the candidates
    laws       what ids were drawn from; empty = coupled draws
    on_trunk   how many of `token` and `ids` have their KV behind the trunk's, as they were known before the tree
    slots      where the KV of the others is written, in order; the last id never needs one
    """

    accepted: int
    token: int
    limit: int
    rank: int = 0
    ids: list[int] = field(default_factory=list)
    laws: list[Law] = field(default_factory=list)
    on_trunk: int = 0
    slots: list[int] = field(default_factory=list)
    ended: bool = False

    @property
    def growing(self) -> bool:
        return not self.ended and len(self.ids) < self.limit

    @property
    def slots_needed(self) -> int:
        return self.limit - self.on_trunk if self.growing else 0


class Tree:
    """The branches of one round at `base_len` with `proposal` in flight.

    A branch sees the trunk up to its accepted tokens and then its own tokens, whose KV lives in scratch blocks until
    the tree is finished or given up.
    """

    def __init__(
        self, base_len: int, proposal: Sequence[int], paths: Sequence[Path], publish_at: Collection[int]
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
        """Whether the table is to be sent as it is now: so too before it grows, if a branch was known before."""
        if self.depth == 0:
            return any(path.ids for path in self.paths)
        return self.finished or self.depth in self.publish_at

    @property
    def depths_to_due(self) -> int:
        """Depths that can be grown before the table is worth sending again."""
        longest = max((path.limit - len(path.ids) for path in self.growing), default=0)
        return min([longest, *(depth - self.depth for depth in self.publish_at if depth > self.depth)])

    def reserve(self, pool: BlockPool) -> None:
        """Scratch blocks for all depths, once; raises OutOfBlocks and then holds none."""
        if self.scratch is not None:
            return
        scratch = BlockTable(pool)
        scratch.ensure(sum(path.slots_needed for path in self.paths))
        self.scratch, start = scratch, 0
        for path in self.paths:
            path.slots = scratch.slots(start, start + path.slots_needed)
            start += path.slots_needed

    def release(self) -> None:
        """Give the scratch blocks back; the tree cannot grow any more."""
        if self.scratch is not None:
            self.scratch.release()
            self.scratch = None

    def items(self, trunk: BlockTable) -> Iterator[BranchItem]:
        """The newest token of every growing branch."""
        for path in self.growing:
            prefix = self.base_len + path.accepted + path.on_trunk
            own = 1 + len(path.ids) - path.on_trunk
            newest = path.ids[-1] if path.ids else path.token
            yield BranchItem(newest, prefix + own - 1, trunk, prefix, path.slots[:own], path.slots[own:])

    def text(self, path: Path) -> tuple[int, ...]:
        """The tokens between the committed text and the branch's next one."""
        return (*self.proposal[: path.accepted], path.token, *path.ids)

    def grow(self, answers: Sequence[Drawn], ending_ids: Collection[int]) -> None:
        """Append one token to each growing branch, in order; a branch that meets an ending id is complete."""
        for path, answer in zip(self.growing, answers, strict=True):
            path.ids.append(answer.ids[0])
            if answer.law is not None:
                path.laws.append(answer.law)
            path.ended = answer.ids[0] in ending_ids
        self.depth += 1
        if self.finished:
            self.release()

    def table(self) -> OutcomeTable:
        """What is known so far."""
        branches = tuple(
            Branch(path.accepted, path.token, tuple(path.ids), tuple(path.laws), path.rank) for path in self.paths
        )
        return OutcomeTable(self.base_len, self.proposal, self.depth, branches)
