"""Paged attention through an installed flash_attn: version 4 (flash_attn.cute) or 2. Where it cannot take a step, the
project's own kernels compute it."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ssd.layers.attention import AttentionContext
from ssd.layers.attention_triton import TritonAttention

_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class FlashKernel:
    """A paged attention function of flash_attn. `page` divides the block sizes that it takes.

    compute(q [T, Hq, d], keys, values [blocks, block size, Hkv, d], starts int32 [R + 1], lengths int32 [R],
    tables int32 [R, W], most queries a row) → [T, Hq, d].
    """

    page: int
    compute: Callable[..., torch.Tensor]


def find_flash_kernel() -> FlashKernel:
    """The newest that is installed; ValueError where there is none."""
    for module, page, adapt in (("flash_attn.cute", 1, _version_4), ("flash_attn", 256, _version_2)):
        try:
            function = importlib.import_module(module).flash_attn_varlen_func
        except (ImportError, AttributeError):
            continue
        return FlashKernel(page, adapt(function))
    raise ValueError("attention backend 'flash_attn' needs the package flash_attn, which is not installed")


class FlashAttention:
    """AttentionBackend over flash_attn for 16-bit rows of sequences; branches, other dtypes and block sizes that it
    does not take go to TritonAttention."""

    deterministic = False

    def __init__(self, kernel: FlashKernel, fallback: TritonAttention) -> None:
        self.kernel = kernel
        self.fallback = fallback

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache_k: torch.Tensor,
        cache_v: torch.Tensor,
        ctx: AttentionContext,
    ) -> torch.Tensor:
        if ctx.branches is not None or q.dtype not in _HALVES or ctx.block_size % self.kernel.page:
            return self.fallback.attend(q, k, v, cache_k, cache_v, ctx)
        self.fallback.write(k, v, cache_k, cache_v, ctx)
        if ctx.plan is None:
            ctx.plan = [x.to(torch.int32) for x in (ctx.query_starts, ctx.context_lens, ctx.block_tables)]
        starts, lengths, tables = ctx.plan
        most = max(ctx.query_lens) if ctx.most_queries is None else ctx.most_queries
        shape = (-1, ctx.block_size, *cache_k.shape[1:])
        return self.kernel.compute(
            q.contiguous(), cache_k.view(shape), cache_v.view(shape), starts, lengths, tables, most
        )


def _version_4(function: Callable[..., object]) -> Callable[..., torch.Tensor]:
    def compute(
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        starts: torch.Tensor,
        lengths: torch.Tensor,
        tables: torch.Tensor,
        most: int,
    ) -> torch.Tensor:
        result = function(
            q,
            keys,
            values,
            cu_seqlens_q=starts,
            seqused_k=lengths,
            page_table=tables,
            max_seqlen_q=most,
            causal=True,
        )
        return _output(result)

    return compute


def _version_2(function: Callable[..., object]) -> Callable[..., torch.Tensor]:
    def compute(
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        starts: torch.Tensor,
        lengths: torch.Tensor,
        tables: torch.Tensor,
        most: int,
    ) -> torch.Tensor:
        key_starts = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        longest = tables.shape[1] * keys.shape[1]
        result = function(q, keys, values, starts, key_starts, most, longest, causal=True, block_table=tables)
        return _output(result)

    return compute


def _output(result: object) -> torch.Tensor:
    """The output alone, where the log-sum-exp comes with it."""
    output = result[0] if isinstance(result, tuple) else result
    if not isinstance(output, torch.Tensor):
        raise TypeError(f"flash_attn returned {type(output).__name__} instead of a tensor")
    return output
