"""The operations of a decoder layer as Triton kernels; torch where a kernel would win nothing."""

import importlib
from collections.abc import Sequence

import structlog
import torch
import triton
from torch.nn import functional

from ssd.kernels.linear import MOST_ROWS, Residual, Squares, linear, linear_into, tall_linear
from ssd.kernels.norms import add_rms_norm_rows, rms_norm_rows, silu_mul_rows
from ssd.kernels.tiles import tile_for
from ssd.kernels.turning import turn_heads
from ssd.layers.fused import Spans, SpanWeights, Stream

_HALVES = (torch.float16, torch.bfloat16)
log = structlog.get_logger()
# Tiles of outputs that a matrix product may have; wider ones go to torch.
_MOST_TILES = 1 << 16


class TritonOps:
    """Ops (ssd.layers.ops) of one step loop: every launch can be captured in a CUDA graph, and none waits.

    Not for several streams at a time: the matrix products share their counters of arrivals. `early` launches kernels
    while the one before still runs (compute capability 9). own_products: torch's are not used for 16 bits.
    """

    def __init__(self, device: torch.device | str = "cuda", *, early: bool = False, own_products: bool = False) -> None:
        self.early = early
        self.own_products = own_products
        self.arrivals = torch.zeros(_MOST_TILES, dtype=torch.int32, device=device)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """x [T, in], weight [out, in], bias [out] → [T, out]."""
        tile = tile_for(*weight.shape)
        if self.skinny(x, weight):
            return linear(x, weight, bias, self.arrivals, tile, early=self.early)
        if self.own_products and self.suits(x, weight):
            return tall_linear(x, weight, bias, self.arrivals, tile.splits, early=self.early)
        return functional.linear(x, weight, bias)

    def skinny(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether the own kernel is the best one for this product: at most 64 rows in 16 bit, packed and aligned."""
        return x.shape[0] <= MOST_ROWS and self.suits(x, weight)

    def suits(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether the own kernel can compute this product."""
        tile = tile_for(*weight.shape)
        return (
            x.dim() == 2
            and x.shape[0] > 0
            and x.dtype in _HALVES
            and weight.dtype == x.dtype
            and x.stride(1) == weight.stride(1) == 1
            and x.stride(0) % 8 == weight.stride(0) % 8 == 0
            and -(-weight.shape[0] // tile.outputs) <= len(self.arrivals)
        )

    def fuses(self, x: torch.Tensor) -> bool:
        """Whether x [T, hidden] is bfloat16 of at most 64 tokens: in float16 the stream times a norm's weight may be
        more than there is."""
        return 0 < x.shape[0] <= MOST_ROWS and x.dtype == torch.bfloat16 and x.shape[1] % 8 == 0

    def scaled_linear(
        self, x: Stream, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, *, gated: bool = False
    ) -> torch.Tensor:
        """norm(x.total) @ weight.T + bias: [T, out]. gated: silu of the first half times the second, [T, out / 2]."""
        squares, tile = Squares(x.squares, eps), tile_for(*weight.shape)
        return linear(x.scaled, weight, bias, self.arrivals, tile, squares=squares, gated=gated, early=self.early)

    def linear_into(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        stream: torch.Tensor,
        norm: torch.Tensor,
    ) -> Stream:
        """stream [T, hidden] + x @ weight.T + bias, for a norm of weight `norm` [hidden]."""
        residual, tile = Residual(stream, norm), tile_for(*weight.shape)
        return Stream(*linear_into(x, weight, bias, self.arrivals, tile, residual, early=self.early))

    def spans(self, layers: Sequence[SpanWeights]) -> Spans | None:
        """The kernel of whole spans for a model's layers, where weights, device and installation suit it."""
        try:
            # Only now: what compiles it comes with torch for CUDA alone.
            made: Spans | None = importlib.import_module("ssd.kernels.span").make_spans(layers)
        except ImportError as error:
            log.info("no kernel of whole spans", reason=str(error))
            return None
        return made

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Over the last dimension, behind any leading ones."""
        width = x.shape[-1]
        rows = x.reshape(-1, width)
        rows = rows if rows.stride(1) == 1 else rows.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if len(rows):
            rms_norm_rows[(len(rows),)](
                rows, weight, out, rows.stride(0), eps, **self._row_shape(width), launch_pdl=self.early
            )
        return out

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """norm(x + residual) and x + residual, [T, hidden] each."""
        rows, width = x.shape
        out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
        total = torch.empty_like(out)
        if rows:
            add_rms_norm_rows[(rows,)](
                x,
                residual,
                weight,
                out,
                total,
                x.stride(0),
                residual.stride(0),
                eps,
                **self._row_shape(width),
                launch_pdl=self.early,
            )
        return out, total

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2 I] → silu(first half) * second half: [T, I]."""
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
        block = min(1024, triton.next_power_of_2(width))
        if rows:
            silu_mul_rows[(rows, -(-width // block))](
                gate_up,
                out,
                gate_up.stride(0),
                width=width,
                block=block,
                early=self.early,
                num_warps=4,
                launch_pdl=self.early,
            )
        return out

    def turn(
        self,
        qkv: torch.Tensor,
        cos_sin: torch.Tensor,
        heads: int,
        kv_heads: int,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
    ) -> torch.Tensor:
        """qkv [T, (Hq + 2 Hkv) d] → [T, Hq + 2 Hkv, d], q and k normalised where weights are given, and turned."""
        return self._turn(qkv, cos_sin, heads, kv_heads, q_norm, k_norm, eps, None)

    def turn_and_write(
        self,
        qkv: torch.Tensor,
        cos_sin: torch.Tensor,
        heads: int,
        kv_heads: int,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
        cache_k: torch.Tensor,
        cache_v: torch.Tensor,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        """`turn` that also writes the turned k and v to `slots` [T] of the cache [slots, Hkv, d], in one kernel; -1
        writes nowhere. TritonAttention.read is the attention that follows."""
        return self._turn(qkv, cos_sin, heads, kv_heads, q_norm, k_norm, eps, (cache_k, cache_v, slots))

    def _turn(
        self,
        qkv: torch.Tensor,
        cos_sin: torch.Tensor,
        heads: int,
        kv_heads: int,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
        written: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None,
    ) -> torch.Tensor:
        tokens, count = qkv.shape[0], heads + 2 * kv_heads
        half = qkv.shape[1] // count // 2
        out = torch.empty((tokens, count, 2 * half), dtype=qkv.dtype, device=qkv.device)
        if not tokens:
            return out
        cache_k, cache_v, slots = (out, out, out) if written is None else written
        block = min(8, triton.next_power_of_2(count))
        turn_heads[(tokens, -(-count // block))](
            qkv,
            cos_sin,
            out if q_norm is None else q_norm,
            out if k_norm is None else k_norm,
            out,
            cache_k,
            cache_v,
            slots,
            qkv.stride(0),
            cos_sin.stride(0),
            cache_k.stride(0),
            cache_v.stride(0),
            eps,
            heads=heads,
            kv_heads=kv_heads,
            half=half,
            half_wide=triton.next_power_of_2(half),
            block=block,
            normed=q_norm is not None and k_norm is not None,
            written=written is not None,
            early=self.early,
            num_warps=4,
            launch_pdl=self.early,
        )
        return out

    def _row_shape(self, width: int) -> dict[str, int | bool]:
        wide = triton.next_power_of_2(width)
        return {"width": width, "width_wide": wide, "early": self.early, "num_warps": min(16, max(1, wide // 512))}
