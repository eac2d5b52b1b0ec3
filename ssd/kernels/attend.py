"""The kernel of attend.cu: which steps it takes, its variants, and its launches."""

import math
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from ssd.kernels.cuda import CudaError, CudaKernel
from ssd.layers.attention import AttentionContext, Turning
from ssd.runtime.device import can_launch_early

SOURCE = Path(__file__).with_name("attend.cu")
TALLS = (16, 32, 64, 128)
"""Rows of (tokens x heads that share a key head) that the variants hold."""
MOST_KEYS = 2560
"""Slots of a block table up to which it was measured to be faster than kernels that spread keys over more programs.
With several rows it is faster by itself, but not within a step."""
SPLITS = 8
STEP = 64
_LOG2_E = 1.4426950408889634

log = structlog.get_logger()


@dataclass(frozen=True)
class AttendVariant:
    """What the kernel is compiled for. tall: queries of a row; normed: q and k are normalised; splits: blocks that
    share a row's keys."""

    dim: int
    heads: int
    kv_heads: int
    tall: int
    normed: bool
    block_size: int
    splits: int = SPLITS

    @property
    def warps(self) -> tuple[int, int]:
        """Along the queries, and along the keys of a step."""
        high = self.tall // 16
        return high, 4 if high == 1 else 8 // high

    @property
    def threads(self) -> int:
        return math.prod(self.warps) * 32

    @property
    def shared_bytes(self) -> int:
        """Of a block: steps of keys and values with their slots, queries, and the parts that are joined there."""
        line, stages, (_, wide) = self.dim * 2, 3 if self.tall == 128 else 4, self.warps
        parts = wide * self.tall * (self.dim + 2) * 4 + self.tall // self.splits * 33 * 4
        return stages * STEP * (2 * line + 4) + self.tall * line + parts + 256

    def defines(self) -> dict[str, int]:
        """The macros of attend.cu."""
        return {
            "DIM": self.dim,
            "HEADS": self.heads,
            "KV_HEADS": self.kv_heads,
            "TALL": self.tall,
            "NORMED": int(self.normed),
            "SPLITS": self.splits,
            "BLOCK_SIZE": self.block_size,
            "SHARED_BYTES": self.shared_bytes,
        }


class CudaAttention:
    """Turning, writing and attention of small steps on one GPU. Of one step loop; variants are compiled when a step
    first asks, which is before any is captured."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._kernels: dict[AttendVariant, CudaKernel | None] = {}

    def turn_and_attend(
        self, qkv: torch.Tensor, turning: Turning, cache_k: torch.Tensor, cache_v: torch.Tensor, ctx: AttentionContext
    ) -> torch.Tensor | None:
        """See ssd.layers.attention.WholeBackend; None for a step that is not one of few queries in bfloat16, or that
        other kernels are faster for."""
        rows, width = ctx.block_tables.shape
        variant = None if rows > 1 or width * ctx.block_size > MOST_KEYS else variant_for(qkv, turning, ctx)
        kernel = None if variant is None else self.kernel(variant)
        if variant is None or kernel is None:
            return None
        return run(kernel, variant, qkv, turning, cache_k, cache_v, ctx)

    def kernel(self, variant: AttendVariant) -> CudaKernel | None:
        """Compiled when it is first asked for; None where it cannot run."""
        if variant not in self._kernels:
            self._kernels[variant] = self._compiled(variant)
        return self._kernels[variant]

    def _compiled(self, variant: AttendVariant) -> CudaKernel | None:
        try:
            kernel = CudaKernel(SOURCE, "attend", variant.defines(), self.device)
            kernel.allow_shared(variant.shared_bytes)
            if not kernel.clusters_at_once(variant.splits, variant.splits, variant.threads, variant.shared_bytes):
                raise CudaError("a cluster of its blocks does not fit on the device")
        except RuntimeError as error:
            log.info("no kernel of whole attention", variant=variant, reason=str(error))
            return None
        return kernel


def run(
    kernel: CudaKernel,
    variant: AttendVariant,
    qkv: torch.Tensor,
    turning: Turning,
    cache_k: torch.Tensor,
    cache_v: torch.Tensor,
    ctx: AttentionContext,
) -> torch.Tensor:
    """qkv [T, (Hq + 2 Hkv) d] → [T, Hq d], for any number of rows."""
    tokens, rows = qkv.shape[0], ctx.block_tables.shape[0]
    out = torch.empty((tokens, variant.heads * variant.dim), dtype=qkv.dtype, device=qkv.device)
    kernel.launch(
        rows * variant.kv_heads * variant.splits,
        variant.threads,
        variant.shared_bytes,
        (
            qkv,
            turning.cos_sin,
            turning.q_norm,
            turning.k_norm,
            cache_k,
            cache_v,
            out,
            ctx.slots,
            ctx.query_starts,
            ctx.context_lens,
            ctx.block_tables,
            qkv.stride(0),
            cache_k.stride(0),
            ctx.block_tables.stride(0),
            tokens,
            rows,
            float(turning.eps),
            variant.dim**-0.5 * _LOG2_E,
        ),
        # What the kernel before writes is read behind its end, and everything else is older than that kernel.
        early=True,
    )
    return out


def variant_for(
    qkv: torch.Tensor, turning: Turning, ctx: AttentionContext, splits: int = SPLITS
) -> AttendVariant | None:
    """The variant for a step; None where there is none."""
    heads, kv_heads = turning.heads, turning.kv_heads
    dim, fold = qkv.shape[1] // (heads + 2 * kv_heads), heads // kv_heads
    most = max(ctx.query_lens) if ctx.most_queries is None else ctx.most_queries
    if qkv.dtype != torch.bfloat16 or dim not in (64, 128) or qkv.stride(0) % 8:
        return None
    if ctx.branches is not None or most * fold > TALLS[-1]:
        return None
    tall = next(height for height in TALLS if most * fold <= height)
    return AttendVariant(dim, heads, kv_heads, tall, turning.q_norm is not None, ctx.block_size, splits)


def make_attention(device: torch.device) -> CudaAttention | None:
    """For a GPU of compute capability 9 or more; None for others."""
    return CudaAttention(device) if can_launch_early(device) else None
