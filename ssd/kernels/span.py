"""The kernel of span.cu: what it can be made for, its memory, and its launches."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from ssd.kernels.cuda import CudaError, CudaKernel, mps_enabled
from ssd.layers.fused import Affine, SpanWeights
from ssd.runtime.device import can_launch_early

SOURCE = Path(__file__).with_name("span.cu")
CLUSTER, THREADS = 4, 12 * 32
TILE, BLOCK, DEPTH = 16, 64, 4
"""A stage holds TILE outputs x DEPTH blocks of BLOCK inputs; a tile of gates and ups is half of either."""
HEIGHTS = (8,)
"""Rows that the variants of the kernel take. With 16 or 32 it is right too, but slower than separate products."""
_ROUND, _SPREAD = 4, TILE + 4

log = structlog.get_logger()


@dataclass(frozen=True)
class SpanShape:
    """Widths of a model: of the stream, of what attention gives, inside the MLP, and of q, k and v together."""

    hidden: int
    attended: int
    inner: int
    qkv: int

    @classmethod
    def of(cls, layer: SpanWeights, qkv: int) -> "SpanShape":
        hidden, attended = layer.out.weight.shape
        return cls(hidden, attended, layer.down.weight.shape[1], qkv)

    @property
    def suits(self) -> bool:
        """Whether tiles and blocks divide the widths."""
        return not any(width % BLOCK for width in (self.hidden, self.attended, self.inner)) and self.qkv % TILE == 0


@dataclass(frozen=True)
class SpanPlan:
    """How the kernel divides the work. stages: of 8 KiB of weights that a block holds ahead; chunks: of 256 columns of
    x. splits: of the inputs of out, up, down and qkv over a cluster, 1 or 4."""

    grid: int = 120
    stages: int = 14
    chunks: int = 3
    splits: tuple[int, int, int, int] = (4, 1, 4, 1)

    def defines(self, shape: SpanShape, rows: int) -> dict[str, int]:
        """The macros of span.cu."""
        out, up, down, qkv = self.splits
        return {
            "GRID": self.grid,
            "ROWS": rows,
            "STAGES": self.stages,
            "CHUNKS": self.chunks,
            "HIDDEN": shape.hidden,
            "ATTENDED": shape.attended,
            "INNER": shape.inner,
            "QKV": shape.qkv,
            "SHARED_BYTES": self.shared_bytes(shape, rows),
            "SPLIT_OUT": out,
            "SPLIT_UP": up,
            "SPLIT_DOWN": down,
            "SPLIT_QKV": qkv,
        }

    def shared_bytes(self, shape: SpanShape, rows: int) -> int:
        """Of a block: both rings, what its warps and its cluster exchange, and some KiB for the rest."""
        widths = (shape.hidden, 2 * shape.inner, shape.hidden, shape.qkv)
        taken = [self._taken(width // TILE, split, rows) for width, split in zip(widths, self.splits, strict=True)]
        parcels = [-(-tiles // _ROUND) for tiles, split in zip(taken, self.splits, strict=True) if split > 1]
        sums = 4 * rows * _SPREAD * 4
        rings = (self.stages * TILE + self.chunks * rows) * DEPTH * BLOCK * 2
        return rings + min(_ROUND, max(taken)) * sums + max([1, *parcels]) * sums + 4096

    def _taken(self, tiles: int, split: int, rows: int) -> int:
        """Tiles of one pass of a block."""
        share = -(-tiles // (self.grid // split))
        passes = -(-share // {8: 16, 16: 12, 32: 6}[rows])
        return -(-share // passes)


class CudaSpans:
    """Spans (ssd.layers.fused) of a bfloat16 model on one GPU."""

    most_rows = HEIGHTS[-1]

    def __init__(self, layers: Sequence[SpanWeights], shape: SpanShape, plan: SpanPlan) -> None:
        self.layers, self.shape, self.plan = layers, shape, plan
        device = layers[0].out.weight.device
        self._kernels = {rows: CudaKernel(SOURCE, "span", plan.defines(shape, rows), device) for rows in HEIGHTS}
        for rows, kernel in self._kernels.items():
            kernel.allow_shared(plan.shared_bytes(shape, rows))
        rows = self.most_rows

        def memory(width: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
            return torch.zeros(rows, width, dtype=dtype, device=device)

        self._total, self._scaled, self._inner = memory(shape.hidden), memory(shape.hidden), memory(shape.inner)
        self._qkv, self._squares = memory(shape.qkv), memory(plan.grid, torch.float32)
        self._arrivals = torch.zeros(len(layers), 4, dtype=torch.int32, device=device)

    def resident(self) -> int:
        """How many such kernels the device holds at a time, as the driver counts. With less than one its blocks would
        wait for blocks that never start."""
        held = (
            kernel.clusters_at_once(CLUSTER, self.plan.grid, THREADS, self.plan.shared_bytes(self.shape, rows))
            for rows, kernel in self._kernels.items()
        )
        return min(held) * CLUSTER // self.plan.grid

    def begin(self) -> None:
        self._arrivals.zero_()

    def run(self, layer: int, attended: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        tokens, weights = len(attended), self.layers[layer]
        if not (attended.is_contiguous() and before.is_contiguous()):
            raise ValueError("attended and the stream before the layer must be contiguous")
        rows = next(height for height in HEIGHTS if tokens <= height)
        qkv = None if weights.qkv is None else self._qkv
        self._kernels[rows].launch(
            self.plan.grid,
            THREADS,
            self.plan.shared_bytes(self.shape, rows),
            (
                *(product.weight for product in products_of(weights)),
                attended,
                before,
                weights.out.bias,
                weights.up.bias,
                weights.down.bias,
                None if weights.qkv is None else weights.qkv.bias,
                weights.norm[0],
                weights.next_norm[0],
                self._total,
                self._scaled,
                self._inner,
                qkv,
                self._squares,
                self._arrivals[layer],
                weights.norm[1],
                weights.next_norm[1],
                tokens,
            ),
            # Attention is right before, and all else that the span reads or writes is behind that.
            early=True,
        )
        return self._total[:tokens], None if qkv is None else qkv[:tokens]


def products_of(layer: SpanWeights) -> list[Affine]:
    """The four products in their order; the last stands for itself where there is none."""
    return [layer.out, layer.up, layer.down, layer.down if layer.qkv is None else layer.qkv]


def make_spans(layers: Sequence[SpanWeights], plan: SpanPlan | None = None) -> CudaSpans | None:
    """Spans of a model's layers; None, and a line in the log, where weights or device do not suit."""
    plan = plan or SpanPlan()
    known = [layer.qkv for layer in layers if layer.qkv is not None]
    weights = [product.weight for layer in layers for product in products_of(layer)]
    if not known or any(w.dtype != torch.bfloat16 or not w.is_contiguous() for w in weights):
        return None
    shape, device = SpanShape.of(layers[0], known[0].weight.shape[0]), weights[0].device
    if not shape.suits or not can_launch_early(device):
        return None
    try:
        if mps_enabled(device):
            # Two such kernels, each with half of its blocks on the device, would wait for ever.
            raise CudaError("the device is shared under MPS")
        spans = CudaSpans(layers, shape, plan)
        if not spans.resident():
            raise CudaError("its blocks do not fit on the device together")
    except RuntimeError as error:
        # Of the driver or the compiler, or of its bindings, where they find neither.
        log.info("no kernel of whole spans", reason=str(error))
        return None
    return spans
