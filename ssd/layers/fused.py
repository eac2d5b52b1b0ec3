"""Products that take the norms and the sums around them along, for ops that have such kernels."""

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
