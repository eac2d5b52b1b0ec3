"""Runs one step of a model: packs rows into tensors, builds the attention context, returns the logits asked for.

A row is 1..n query tokens of a sequence at consecutive positions: decoding is one token, verification K + 1, a chunk of
prefill any number. All three mix freely in one step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from ssd.layers.attention import AttentionBackend, AttentionContext, BranchContext
from ssd.models.config import ModelConfig
from ssd.models.decoder import CausalLM
from ssd.runtime.blocks import BlockTable
from ssd.runtime.kv_cache import KVCache


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
    order; the last of these is its own, where its KV is written. So position = prefix_len + len(suffix_slots) - 1."""

    token: int
    position: int
    trunk: BlockTable
    prefix_len: int
    suffix_slots: Sequence[int]


class ModelRunner:
    """One model with one KV cache. Not thread-safe: one step loop owns it."""

    def __init__(self, model: CausalLM, config: ModelConfig, kv: KVCache, backend: AttentionBackend) -> None:
        if model.deterministic and not backend.deterministic:
            raise ValueError("a deterministic model needs a deterministic attention backend")
        self.model = model
        self.config = config
        self.kv = kv
        self.backend = backend
        self.device = kv.keys[0].device

    @torch.inference_mode()
    def run(self, rows: Sequence[RunRow]) -> torch.Tensor:
        """One forward over all rows → logits [sum of row.logits, vocab] in the model's dtype, row after row.

        ValueError for an id outside the vocabulary, a position past the model's limit or outside the row's table.
        """
        if not rows:
            raise ValueError("a step needs at least one row")
        for row in rows:
            self._check_row(row)
        ends = [row.start + len(row.ids) for row in rows]
        counts = [len(row.ids) for row in rows]
        starts = [0]
        for count in counts:
            starts.append(starts[-1] + count)
        ctx = self._context(
            positions=[p for row, end in zip(rows, ends, strict=True) for p in range(row.start, end)],
            slots=[s for row, end in zip(rows, ends, strict=True) for s in row.table.slots(row.start, end)],
            tables=[row.table.blocks[: -(-end // self.kv.block_size)] for row, end in zip(rows, ends, strict=True)],
            query_starts=starts,
            key_lens=ends,
        )
        hidden = self.model(self._tensor([token for row in rows for token in row.ids]), ctx)
        wanted = [i for row, stop in zip(rows, starts[1:], strict=True) for i in range(stop - row.logits, stop)]
        if len(wanted) < len(hidden):
            hidden = hidden.index_select(0, self._tensor(wanted))
        return self.model.logits(hidden)

    @torch.inference_mode()
    def run_branches(self, items: Sequence[BranchItem]) -> torch.Tensor:
        """One token of each branch → logits [T, vocab] in the model's dtype.

        The branches' earlier tokens must have been run before, each in its own suffix slots.
        """
        if not items:
            raise ValueError("a step needs at least one branch")
        for item in items:
            self._check_branch(item)
        trunks = list({id(item.trunk): item.trunk for item in items}.values())
        row_of = {id(trunk): row for row, trunk in enumerate(trunks)}
        depth = max(len(item.suffix_slots) for item in items)
        ctx = self._context(
            positions=[item.position for item in items],
            slots=[item.suffix_slots[-1] for item in items],
            tables=[trunk.blocks for trunk in trunks],
            query_starts=list(range(len(items) + 1)),
            key_lens=[item.position + 1 for item in items],
        )
        ctx.branches = BranchContext(
            trunk_row=self._tensor([row_of[id(item.trunk)] for item in items]),
            prefix_len=self._tensor([item.prefix_len for item in items]),
            suffix_slots=self._tensor(
                [[*item.suffix_slots, *[-1] * (depth - len(item.suffix_slots))] for item in items]
            ),
            suffix_len=self._tensor([len(item.suffix_slots) for item in items]),
        )
        return self.model.logits(self.model(self._tensor([item.token for item in items]), ctx))

    def _context(
        self,
        positions: list[int],
        slots: list[int],
        tables: list[list[int]],
        query_starts: list[int],
        key_lens: list[int],
    ) -> AttentionContext:
        width = max(1, max(len(table) for table in tables))
        return AttentionContext(
            positions=self._tensor(positions),
            slots=self._tensor(slots),
            query_starts=self._tensor(query_starts),
            context_lens=self._tensor(key_lens),
            block_tables=self._tensor([table + [0] * (width - len(table)) for table in tables]),
            block_size=self.kv.block_size,
            query_lens=[stop - start for start, stop in pairwise(query_starts)],
            key_lens=key_lens,
            backend=self.backend,
            keys=self.kv.keys,
            values=self.kv.values,
        )

    def _tensor(self, values: list[int] | list[list[int]]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def _check_row(self, row: RunRow) -> None:
        if not row.ids:
            raise ValueError("a row needs at least one query token")
        if not 0 <= row.logits <= len(row.ids):
            raise ValueError(f"logits of {row.logits} tokens asked for in a row of {len(row.ids)}")
        if row.start < row.table.fixed:
            raise ValueError(
                f"row starts at {row.start}, but the KV before {row.table.fixed} is shared and stays as it is"
            )
        self._check_ids(row.ids)
        self._check_position(row.start + len(row.ids) - 1)

    def _check_branch(self, item: BranchItem) -> None:
        if item.position != item.prefix_len + len(item.suffix_slots) - 1:
            raise ValueError(
                f"branch token at position {item.position} has {item.prefix_len} trunk positions "
                f"and {len(item.suffix_slots)} of its own, itself included"
            )
        if not 0 <= item.prefix_len <= item.trunk.capacity:
            raise ValueError(f"prefix of {item.prefix_len} is outside a block table of {item.trunk.capacity} slots")
        slots = self.kv.blocks * self.kv.block_size
        if not item.suffix_slots or not all(0 <= slot < slots for slot in item.suffix_slots):
            raise ValueError(f"suffix slots {list(item.suffix_slots)} are empty or outside a cache of {slots} slots")
        self._check_ids([item.token])
        self._check_position(item.position)

    def _check_ids(self, ids: Sequence[int]) -> None:
        if min(ids) < 0 or max(ids) >= self.config.vocab_size:
            bad = next(token for token in ids if not 0 <= token < self.config.vocab_size)
            raise ValueError(f"token id {bad} is outside the vocabulary of {self.config.vocab_size}")

    def _check_position(self, position: int) -> None:
        if position >= self.config.max_position:
            raise ValueError(f"position {position} is past the model's limit of {self.config.max_position} tokens")
