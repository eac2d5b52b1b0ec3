"""Products that take the norms and the sums around them along, for ops that have such kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch


@dataclass(frozen=True)
class Stream:
    """The residual stream behind a product, ready for the norm that follows.

    total    [T, hidden] the sum itself
    scaled   [T, hidden] times the norm's weight, not yet divided by the root mean square
    squares  sums of squares of total's rows by tiles of columns, float32 [tiles, rows or more]
    """

    total: torch.Tensor
    scaled: torch.Tensor
    squares: torch.Tensor


@runtime_checkable
class FusedOps(Protocol):
    """Ops with fewer, larger kernels for steps of few tokens. Results differ from those of the separate ops only in
    where they are rounded."""

    def fuses(self, x: torch.Tensor) -> bool:
        """Whether a step with activations like x [T, hidden] can be computed so."""
        ...

    def scaled_linear(
        self, x: Stream, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, *, gated: bool = False
    ) -> torch.Tensor:
        """norm(total) @ weight.T + bias: [T, out]. gated: silu of the first half times the second, [T, out / 2]."""
        ...

    def linear_into(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        stream: torch.Tensor,
        norm: torch.Tensor,
    ) -> Stream:
        """stream [T, hidden] + x @ weight.T + bias, for a norm of weight `norm` [hidden]."""
        ...


@dataclass(frozen=True)
class Affine:
    """weight [out, in] and bias [out] of a product."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True)
class SpanWeights:
    """What lies between one layer's attention and the next layer's: its output projection, its MLP (`up` is gate over
    up), and the next layer's q, k and v, with the norm (weight, eps) before each of the last. Behind the last layer
    there is no next one, and `next_norm` is the model's final norm."""

    out: Affine
    up: Affine
    down: Affine
    qkv: Affine | None
    norm: tuple[torch.Tensor, float]
    next_norm: tuple[torch.Tensor, float]


class Spans(Protocol):
    """The spans of a model's layers, each computed by one kernel. Of one step loop, like its ops."""

    most_rows: int

    def begin(self) -> None:
        """Before the first layer's span of a step."""
        ...

    def run(self, layer: int, attended: torch.Tensor, before: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """attended [T, Hq d] and the stream before the layer [T, hidden] → the stream behind it, and what the next
        layer's q, k and v are, [T, (Hq + 2 Hkv) d]; good until the next run. T <= most_rows."""
        ...


@runtime_checkable
class SpanningOps(Protocol):
    """Ops that may have such kernels."""

    def spans(self, layers: Sequence[SpanWeights]) -> Spans | None:
        """For a model whose weights are there; None where they or the device do not suit."""
        ...
