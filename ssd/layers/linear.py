"""Matrix products split over ranks. Weights are [out, in] as in checkpoints."""

from collections.abc import Sequence

import torch

from ssd.layers.build import Build
from ssd.layers.weights import Layer, Source, expect_shape


class ColumnLinear(Layer):
    """Output features split over ranks, several products packed into one: x [T, in] → [T, sum of local widths].

    `widths` are the whole output widths of the packed products, in order; `parts` their names in a checkpoint.
    """

    def __init__(
        self, inputs: int, widths: Sequence[int], build: Build, *, parts: Sequence[str] = (), bias: bool
    ) -> None:
        super().__init__()
        self.ops = build.ops
        self.inputs = inputs
        self.parts = tuple(parts)
        self.widths = tuple(widths)
        self.spans = tuple(self.span(index, build) for index in range(len(widths)))
        self.local_widths = tuple(stop - start for start, stop in self.spans)
        self.weight = build.empty(sum(self.local_widths), inputs)
        self.bias = build.empty(sum(self.local_widths)) if bias else None

    def span(self, index: int, build: Build) -> tuple[int, int]:
        """Rows of the whole product `index` that this rank holds."""
        share = build.shard.split(self.widths[index], "output width")
        return build.shard.rank * share, (build.shard.rank + 1) * share

    def load(self, parameter: str, source: Source, part: str = "") -> None:
        index = self.parts.index(part) if part else 0
        whole = [self.widths[index], self.inputs] if parameter == "weight" else [self.widths[index]]
        expect_shape(source, whole)
        start, stop = self.spans[index]
        own = getattr(self, parameter).narrow(0, sum(self.local_widths[:index]), stop - start)
        own.copy_(source[start:stop])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ops.linear(x, self.weight, self.bias)


class QKVLinear(ColumnLinear):
    """Query, key and value in one product: [T, (Hq + 2 Hkv) d] of this rank's heads.

    Query heads must divide by the ranks. Key and value heads are split while they divide, and else replicated, so that
    each rank holds the ones that its query heads read.
    """

    def __init__(self, inputs: int, heads: int, kv_heads: int, head_dim: int, build: Build, *, bias: bool) -> None:
        self.heads = build.shard.split(heads, "attention heads")
        self.kv_heads = local_kv_heads(kv_heads, build.shard.size)
        self.head_dim = head_dim
        widths = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
        super().__init__(inputs, widths, build, parts=("q_proj", "k_proj", "v_proj"), bias=bias)

    def span(self, index: int, build: Build) -> tuple[int, int]:
        if index == 0:
            return super().span(index, build)
        whole = self.widths[index] // self.head_dim
        first = build.shard.rank * whole // build.shard.size
        return first * self.head_dim, (first + self.kv_heads) * self.head_dim


def local_kv_heads(kv_heads: int, ranks: int) -> int:
    """Key and value heads that one of `ranks` holds; ValueError where heads can neither be split nor replicated."""
    if kv_heads % ranks and ranks % kv_heads:
        raise ValueError(f"{kv_heads} key/value heads can be neither split over nor replicated on {ranks} ranks")
    return max(1, kv_heads // ranks)


class RowLinear(Layer):
    """Input features split over ranks, the partial results summed: x [T, in / ranks] → [T, out]."""

    def __init__(self, inputs: int, outputs: int, build: Build, *, bias: bool) -> None:
        super().__init__()
        self.ops = build.ops
        self.shard = build.shard
        self.shape = (outputs, inputs)
        self.weight = build.empty(outputs, build.shard.split(inputs, "input width"))
        self.bias = build.empty(outputs) if bias else None

    def load(self, parameter: str, source: Source, part: str = "") -> None:
        if parameter == "bias":
            expect_shape(source, self.shape[:1])
            getattr(self, parameter).copy_(source[:])
            return
        expect_shape(source, self.shape)
        width = self.weight.shape[1]
        self.weight.copy_(source[:, self.shard.rank * width : (self.shard.rank + 1) * width])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.shard.size == 1:
            return self.ops.linear(x, self.weight, self.bias)
        y = self.shard.all_reduce(self.ops.linear(x, self.weight, None))
        return y if self.bias is None else y + self.bias
