"""What a step is asked to run, and the checks that keep a wrong number from the device."""

from collections.abc import Sequence
from dataclasses import dataclass

from ssd.models.config import ModelConfig
from ssd.runtime.blocks import BlockTable


@dataclass(frozen=True)
class RunRow:
    """`ids` at positions start, start + 1, …; the table has slots for them, and KV for everything before. The last
    `logits` of them get logits."""

    ids: Sequence[int]
    start: int
    table: BlockTable
    logits: int = 1


@dataclass(frozen=True)
class BranchItem:
    """The newest token of a branch, at `position`. It sees the trunk's positions 0..prefix_len-1, then suffix_slots in
    order; the last of these is its own, where its KV is written. So position = prefix_len + len(suffix_slots) - 1.
    later_slots are those of the tokens after it, for steps that follow one another without the host."""

    token: int
    position: int
    trunk: BlockTable
    prefix_len: int
    suffix_slots: Sequence[int]
    later_slots: Sequence[int] = ()


@dataclass(frozen=True)
class Checks:
    """ValueError for what a model with `slots` KV slots cannot run."""

    config: ModelConfig
    slots: int

    def row(self, row: RunRow) -> None:
        """An id outside the vocabulary, a position past the model's limit or in a shared block."""
        if not row.ids:
            raise ValueError("a row needs at least one query token")
        if not 0 <= row.logits <= len(row.ids):
            raise ValueError(f"logits of {row.logits} tokens asked for in a row of {len(row.ids)}")
        if row.start < row.table.fixed:
            raise ValueError(
                f"row starts at {row.start}, but the KV before {row.table.fixed} is shared and stays as it is"
            )
        self._ids(row.ids)
        self._position(row.start + len(row.ids) - 1)

    def branch(self, item: BranchItem) -> None:
        """The same, and slots outside the cache."""
        if item.position != item.prefix_len + len(item.suffix_slots) - 1:
            raise ValueError(
                f"branch token at position {item.position} has {item.prefix_len} trunk positions "
                f"and {len(item.suffix_slots)} of its own, itself included"
            )
        if not 0 <= item.prefix_len <= item.trunk.capacity:
            raise ValueError(f"prefix of {item.prefix_len} is outside a block table of {item.trunk.capacity} slots")
        own = [*item.suffix_slots, *item.later_slots]
        if not item.suffix_slots or min(own) < 0 or max(own) >= self.slots:
            raise ValueError(f"suffix slots {own} are empty or outside a cache of {self.slots} slots")
        self._ids([item.token])
        self._position(item.position)

    def _ids(self, ids: Sequence[int]) -> None:
        if min(ids) < 0 or max(ids) >= self.config.vocab_size:
            bad = next(token for token in ids if not 0 <= token < self.config.vocab_size)
            raise ValueError(f"token id {bad} is outside the vocabulary of {self.config.vocab_size}")

    def _position(self, position: int) -> None:
        if position >= self.config.max_position:
            raise ValueError(f"position {position} is past the model's limit of {self.config.max_position} tokens")
