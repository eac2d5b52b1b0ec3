"""Root-mean-square norm."""

import torch
from torch.nn import functional

from ssd.layers.build import Build
from ssd.layers.weights import Layer, Source, expect_shape


class RMSNorm(Layer):
    """x / rms(x) * weight over the last dimension; 16-bit inputs are normalised in float32, float64 stays float64."""

    def __init__(self, size: int, eps: float, build: Build) -> None:
        super().__init__()
        self.size = size
        self.eps = eps
        self.weight = build.empty(size)

    def load(self, parameter: str, source: Source, part: str = "") -> None:
        expect_shape(source, [self.size])
        self.weight.copy_(source[:])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (self.size,), self.weight, self.eps)
