"""Random attention steps for tests and benchmarks: rows over a shuffled paged cache, and trees of branches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from ssd.layers.attention import AttentionBackend, AttentionContext, BranchContext
from ssd.layers.attention_torch import TorchAttention


@dataclass(frozen=True)
class Heads:
    """Query heads, key heads and head size."""

    query: int
    kv: int
    dim: int


@dataclass(frozen=True)
class AttentionCase:
    """One step: q [T, Hq, d], k, v [T, Hkv, d] as views of one packed tensor, a filled cache and its context."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    cache_k: torch.Tensor
    cache_v: torch.Tensor
    ctx: AttentionContext

    def run(self, backend: AttentionBackend, **changes: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Result and the caches after it, all of them copies; `changes` are fields of the context."""
        cache_k, cache_v = self.cache_k.clone(), self.cache_v.clone()
        ctx = replace(self.ctx, backend=backend, plan=None, **changes)  # type: ignore[arg-type]
        return backend.attend(self.q, self.k, self.v, cache_k, cache_v, ctx), cache_k, cache_v

    def as_dtype(self, dtype: torch.dtype) -> "AttentionCase":
        """The same numbers in another dtype, as a reference needs them."""
        q, k, v, cache_k, cache_v = (x.to(dtype) for x in (self.q, self.k, self.v, self.cache_k, self.cache_v))
        return AttentionCase(q, k, v, cache_k, cache_v, self.ctx)


@dataclass(frozen=True)
class Setting:
    """What all rows of a case share."""

    heads: Heads
    block_size: int
    dtype: torch.dtype
    device: torch.device
    seed: int = 0
    spare_width: int = 0
    """Columns that the block tables have beyond the longest row."""

    def packed(self, tokens: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
        """q, k, v of a step as the model hands them over: views of one tensor."""
        heads = self.heads
        shape = (tokens, heads.query + 2 * heads.kv, heads.dim)
        qkv = torch.randn(shape, generator=generator, device=self.device).to(self.dtype)
        return qkv.split([heads.query, heads.kv, heads.kv], dim=1)

    def cache(self, blocks: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (blocks * self.block_size, self.heads.kv, self.heads.dim)
        k, v = (torch.randn(shape, generator=generator, device=self.device).to(self.dtype) for _ in range(2))
        return k, v

    def tables(self, lengths: Sequence[int], blocks: int, generator: torch.Generator) -> list[list[int]]:
        """Distinct random blocks of a cache for rows of these lengths."""
        order = torch.randperm(blocks, generator=generator, device=self.device).tolist()
        counts = [-(-length // self.block_size) for length in lengths]
        stops = list(accumulate(counts))
        return [order[stop - count : stop] for count, stop in zip(counts, stops, strict=True)]

    def whole(self, values: object) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def padded(self, tables: Sequence[Sequence[int]]) -> torch.Tensor:
        width = max(1, *(len(table) for table in tables)) + self.spare_width
        return self.whole([[*table, *[0] * (width - len(table))] for table in tables])


def sequence_case(setting: Setting, rows: Sequence[tuple[int, int]], unwritten: Sequence[int] = ()) -> AttentionCase:
    """Rows of (query tokens, keys that the last of them sees). Tokens `unwritten` have slot -1.

    A row of keys 0 is padding: its tokens see nothing and are written nowhere. The reference takes no such rows.
    """
    generator = torch.Generator(setting.device).manual_seed(setting.seed)
    size = setting.block_size
    blocks = sum(-(-keys // size) for _, keys in rows) + 3
    tables = setting.tables([keys for _, keys in rows], blocks, generator)
    starts = [0, *accumulate(queries for queries, _ in rows)]
    positions, slots = [], []
    for (queries, keys), table in zip(rows, tables, strict=True):
        for position in range(keys - queries, keys) if keys else [0] * queries:
            positions.append(position)
            slots.append(table[position // size] * size + position % size if keys else -1)
    for token in unwritten:
        slots[token] = -1
    q, k, v = setting.packed(starts[-1], generator)
    cache_k, cache_v = setting.cache(blocks, generator)
    ctx = AttentionContext(
        positions=setting.whole(positions),
        slots=setting.whole(slots),
        query_starts=setting.whole(starts),
        context_lens=setting.whole([keys for _, keys in rows]),
        block_tables=setting.padded(tables),
        block_size=size,
        query_lens=[queries for queries, _ in rows],
        key_lens=[keys for _, keys in rows],
        backend=TorchAttention(),
        keys=(),
        values=(),
    )
    return AttentionCase(q, k, v, cache_k, cache_v, ctx)


def branch_case(setting: Setting, trunks: Sequence[Sequence[tuple[int, int]]]) -> AttentionCase:
    """Trunks of branches (prefix seen, tokens of its own, the current one included)."""
    generator = torch.Generator(setting.device).manual_seed(setting.seed)
    size = setting.block_size
    branches = [(row, prefix, own) for row, trunk in enumerate(trunks) for prefix, own in trunk]
    lengths = [max((prefix for prefix, _ in trunk), default=0) for trunk in trunks]
    depth = max(own for _, _, own in branches)
    blocks = sum(-(-length // size) for length in lengths) + -(-sum(own for _, _, own in branches) // size) + 3
    tables = setting.tables(
        [*lengths, (blocks - sum(-(-length // size) for length in lengths)) * size], blocks, generator
    )
    spare = [block * size + offset for block in tables.pop() for offset in range(size)]
    stops = list(accumulate(own for _, _, own in branches))
    suffixes = [spare[stop - own : stop] for (_, _, own), stop in zip(branches, stops, strict=True)]
    q, k, v = setting.packed(len(branches), generator)
    cache_k, cache_v = setting.cache(blocks, generator)
    positions = [max(0, prefix + own - 1) for _, prefix, own in branches]
    ctx = AttentionContext(
        positions=setting.whole(positions),
        slots=setting.whole([slots[-1] if slots else -1 for slots in suffixes]),
        query_starts=setting.whole(list(range(len(branches) + 1))),
        context_lens=setting.whole([position + 1 for position in positions]),
        block_tables=setting.padded(tables),
        block_size=size,
        query_lens=[1] * len(branches),
        key_lens=[position + 1 for position in positions],
        backend=TorchAttention(),
        keys=(),
        values=(),
        branches=BranchContext(
            trunk_row=setting.whole([row for row, _, _ in branches]),
            prefix_len=setting.whole([prefix for _, prefix, _ in branches]),
            suffix_slots=setting.whole([[*slots, *[-1] * (depth - len(slots))] for slots in suffixes]),
            suffix_len=setting.whole([own for _, _, own in branches]),
        ),
    )
    return AttentionCase(q, k, v, cache_k, cache_v, ctx)
