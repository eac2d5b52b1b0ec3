"""Root-mean-square norm."""

import torch

from ssd.layers.build import Build
from ssd.layers.weights import Layer, Source, expect_shape


class RMSNorm(Layer):
    """x / rms(x) * weight over the last dimension."""

    def __init__(self, size: int, eps: float, build: Build) -> None:
        super().__init__()
        self.size = size
        self.eps = eps
        self.ops = build.ops
        self.weight = build.empty(size)

    def load(self, parameter: str, source: Source, part: str = "") -> None:
        expect_shape(source, [self.size])
        self.weight.copy_(source[:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ops.rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of x + residual, and the sum itself; [T, size] each."""
        return self.ops.add_rms_norm(x, residual, self.weight, self.eps)
