"""Paged attention with the kernels of ssd.kernels.attention: any number of query tokens a row, and branches of trunks.

Every launch is shaped by tensor shapes, the block size and `most_queries` alone and can be captured in a CUDA graph;
lengths are read on the device. Block sizes may be any positive integer (a power of two spares a division), head sizes
1..256 (those that are no power of two are computed at the next one). float64 goes to the torch reference, which waits
for the device and cannot be captured.
"""

from dataclasses import dataclass, replace

import torch
import triton

from ssd.kernels.attention import attend_tiles, merge_parts, write_keys
from ssd.layers.attention import AttentionContext, Turning, WholeBackend
from ssd.layers.attention_torch import TorchAttention

_LOG2_E = 1.4426950408889634
_NO_LIMIT = 1 << 30
# Keys of one split in deterministic mode, at positions that depend on nothing.
_FIXED_CHUNK = 256
_LEAST_CHUNK = 64
# A long row in a wide batch is split at least so that no program reads more keys than this.
_MOST_KEYS = 4096
_MOST_SPLITS = 32
# Programs that keep 132 multiprocessors busy; branch tiles are larger, and a second wave of them costs as much again.
_PROGRAMS = 256
_BRANCH_PROGRAMS = 128
_MERGE_GROUP = 8
# Bound of the memory for parts where there are many splits; more tokens are computed in several launches.
_PARTS_BYTES = 256 << 20


@dataclass(frozen=True)
class TileShape:
    """`rows` of (tokens x heads that share a key head), `step` keys at a time."""

    rows: int
    step: int
    warps: int
    stages: int


def tile_shape(rows: int, fold: int, dim: int, dtype: torch.dtype) -> TileShape:
    """The tile for `rows` wanted rows: as high as they need, within what the registers and shared memory hold."""
    least = max(16, triton.next_power_of_2(fold))
    wide = dim > 128
    if dtype == torch.float32:
        return TileShape(max(least, min(triton.next_power_of_2(rows), 32)), 16 if wide else 32, 8 if dim > 64 else 4, 1)
    height = max(least, min(triton.next_power_of_2(rows), 64 if wide else 128))
    return TileShape(height, 32 if wide else 64, 8 if height > 64 else 4, 2 if wide else 3)


@dataclass(frozen=True)
class Job:
    """One pass over the rows of shortest..longest query tokens."""

    shape: TileShape
    splits: int
    shortest: int
    longest: int
    search: bool
    """Whether a row may have several tiles, which then look up their row."""


class TritonAttention:
    """AttentionBackend on a GPU.

    deterministic=True: tiles of one height and splits at fixed positions, so that a token's result depends only on its
    own keys and, for a branch, on where its prefix ends. Otherwise tile and splits follow the width of the block
    tables, the number of rows, `most_queries` and a row's length.

    early: launch kernels while the one before still runs (needs compute capability 9; every kernel between must be a
    normal launch or wait as these do). before_early: the kernels themselves are launched as usual, but let one that is
    launched early behind them begin. small: takes the steps of few queries that it can.
    """

    def __init__(
        self,
        *,
        deterministic: bool = False,
        early: bool = False,
        before_early: bool = False,
        small: WholeBackend | None = None,
    ) -> None:
        self.deterministic = deterministic
        self.early = early
        self.lets_next = early or before_early
        self.small = small
        self.reference = TorchAttention(deterministic=deterministic)

    def turn_and_attend(
        self, qkv: torch.Tensor, turning: Turning, cache_k: torch.Tensor, cache_v: torch.Tensor, ctx: AttentionContext
    ) -> torch.Tensor | None:
        """See ssd.layers.attention.WholeBackend."""
        return None if self.small is None else self.small.turn_and_attend(qkv, turning, cache_k, cache_v, ctx)

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache_k: torch.Tensor,
        cache_v: torch.Tensor,
        ctx: AttentionContext,
    ) -> torch.Tensor:
        if q.dtype == torch.float64:
            return self.reference.attend(q, k, v, cache_k, cache_v, ctx)
        self.write(k, v, cache_k, cache_v, ctx)
        return self.read(q, cache_k, cache_v, ctx)

    def write(
        self, k: torch.Tensor, v: torch.Tensor, cache_k: torch.Tensor, cache_v: torch.Tensor, ctx: AttentionContext
    ) -> None:
        """k, v [T, Hkv, d] to ctx.slots of the cache."""
        tokens, heads, dim = k.shape
        if k.stride()[1:] != (dim, 1) or v.stride()[1:] != (dim, 1):
            k, v = k.contiguous(), v.contiguous()
        width = heads * dim
        write_keys[(tokens,)](
            k,
            v,
            cache_k,
            cache_v,
            ctx.slots,
            k.stride(0),
            v.stride(0),
            cache_k.stride(0),
            cache_v.stride(0),
            width=width,
            width_wide=triton.next_power_of_2(width),
            early=self.early,
            num_warps=4,
            launch_pdl=self.early,
        )

    def read(
        self, q: torch.Tensor, cache_k: torch.Tensor, cache_v: torch.Tensor, ctx: AttentionContext
    ) -> torch.Tensor:
        """Attention over a cache that holds the step's keys already: [T, Hq, d], contiguous."""
        if q.stride()[1:] != (q.shape[2], 1):
            q = q.contiguous()
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for job in self.jobs(q, cache_k.shape[1], ctx):
            for first, tokens in self._windows(q, job, ctx):
                self._launch(q, cache_k, cache_v, out, ctx, job, first, tokens)
        return out

    def jobs(self, q: torch.Tensor, kv_heads: int, ctx: AttentionContext) -> list[Job]:
        """What a step launches: from shapes and most_queries, and from the host's lengths only where most_queries is
        not given."""
        fold = q.shape[1] // kv_heads
        rows, keys = ctx.block_tables.shape[0], ctx.block_tables.shape[1] * ctx.block_size
        if ctx.branches is not None:
            wanted = 1 if self.deterministic else -(-q.shape[0] // rows)
            # A program has one or two steps, for which a pipeline's beginning costs more than it wins (H200, measured).
            shape = replace(tile_shape(min(wanted * fold, 64), fold, q.shape[2], q.dtype), stages=1)
            tiles = rows * -(-wanted // (shape.rows // fold))
            return [Job(shape, self.splits(keys, tiles * kv_heads, _BRANCH_PROGRAMS), 0, _NO_LIMIT, search=False)]
        known = ctx.most_queries is None
        most = max(ctx.query_lens) if ctx.most_queries is None else ctx.most_queries
        if self.deterministic:
            shape = tile_shape(1, fold, q.shape[2], q.dtype)
            return [Job(shape, self.splits(keys, rows), 0, _NO_LIMIT, search=most > shape.rows // fold)]
        whole = tile_shape(most * fold, fold, q.shape[2], q.dtype)
        if most <= whole.rows // fold:
            return [Job(whole, self.splits(keys, rows * kv_heads), 0, _NO_LIMIT, search=False)]
        short = tile_shape(min(most * fold, 64), fold, q.shape[2], q.dtype)
        few = short.rows // fold
        # Many queries a row are enough programs without splits; a short row beside them still has its own pass.
        jobs = [Job(whole, 1, few + 1, _NO_LIMIT, search=True)]
        if not known or min(ctx.query_lens) <= few:
            jobs.append(Job(short, self.splits(keys, rows * kv_heads), 0, few, search=False))
        return jobs

    def splits(self, keys: int, programs: int, enough: int = _PROGRAMS) -> int:
        """Splits of a table of `keys` slots where `programs` programs work without any, for `enough` of them."""
        if self.deterministic:
            return max(1, -(-keys // _FIXED_CHUNK))
        wanted = max(triton.next_power_of_2(-(-enough // programs)), -(-keys // _MOST_KEYS))
        return max(1, min(wanted, _MOST_SPLITS, -(-keys // _LEAST_CHUNK)))

    def _windows(self, q: torch.Tensor, job: Job, ctx: AttentionContext) -> list[tuple[int, int]]:
        """(first token, tokens) of each launch: all at once unless their parts would take too much memory."""
        tokens, heads, dim = q.shape
        if ctx.branches is not None or job.splits == 1:
            return [(0, tokens)]
        size = max(1, _PARTS_BYTES // (job.splits * heads * (dim + 2) * 4))
        return [(first, min(size, tokens - first)) for first in range(0, tokens, size)]

    def _launch(
        self,
        q: torch.Tensor,
        cache_k: torch.Tensor,
        cache_v: torch.Tensor,
        out: torch.Tensor,
        ctx: AttentionContext,
        job: Job,
        first: int,
        tokens: int,
    ) -> None:
        _, heads, dim = q.shape
        kv_heads, rows = cache_k.shape[1], ctx.block_tables.shape[0]
        fold, branches = heads // kv_heads, ctx.branches
        tile_tokens = job.shape.rows // fold
        tiles_a_trunk = -(-tokens // tile_tokens)
        depth = 1 if branches is None else branches.suffix_slots.shape[1]
        in_parts = branches is not None or job.splits > 1
        layers = job.splits if in_parts else 0
        if branches is not None:
            layers += -(-tile_tokens // max(1, job.shape.step // depth))
        parts = torch.empty((layers, tokens, heads, dim), dtype=torch.float32, device=q.device)
        stats = torch.empty((layers, tokens, heads, 2), dtype=torch.float32, device=q.device)
        tiles = rows
        if branches is not None:
            tiles = rows * tiles_a_trunk
        elif job.search:
            tiles = tokens // tile_tokens + rows
        rows_wide = triton.next_power_of_2(rows)
        attend_tiles[(tiles, kv_heads, max(1, layers))](
            q,
            cache_k,
            cache_v,
            out,
            parts,
            stats,
            ctx.query_starts,
            ctx.context_lens,
            ctx.block_tables,
            ctx.slots if branches is None else branches.trunk_row,
            ctx.slots if branches is None else branches.prefix_len,
            ctx.slots if branches is None else branches.suffix_slots,
            ctx.slots if branches is None else branches.suffix_len,
            q.stride(0),
            cache_k.stride(0),
            cache_v.stride(0),
            ctx.block_tables.stride(0),
            1 if branches is None else branches.suffix_slots.stride(0),
            tokens,
            first,
            rows,
            job.shortest,
            job.longest,
            job.splits,
            depth,
            tiles_a_trunk,
            dim**-0.5 * _LOG2_E,
            kv_heads=kv_heads,
            fold=fold,
            dim=dim,
            dim_wide=max(16, triton.next_power_of_2(dim)),
            block_size=ctx.block_size,
            tile=job.shape.rows,
            step=job.shape.step,
            least_chunk=_FIXED_CHUNK if self.deterministic else _LEAST_CHUNK,
            fixed_chunk=self.deterministic,
            search=job.search,
            branch=branches is not None,
            in_parts=in_parts,
            rows_wide=rows_wide,
            tokens_wide=1 if branches is None else triton.next_power_of_2(tokens),
            precision="ieee" if q.dtype == torch.float32 else "tf32",
            early=self.lets_next,
            num_warps=job.shape.warps,
            num_stages=job.shape.stages,
            launch_pdl=self.early,
        )
        if in_parts:
            merge_parts[(tokens, heads)](
                parts,
                stats,
                out,
                ctx.query_starts,
                tokens,
                first,
                rows,
                job.longest,
                layers,
                heads=heads,
                dim=dim,
                dim_wide=triton.next_power_of_2(dim),
                group=_MERGE_GROUP if self.deterministic else triton.next_power_of_2(layers),
                branch=branches is not None,
                rows_wide=rows_wide,
                early=self.lets_next,
                num_warps=4,
                launch_pdl=self.early,
            )
