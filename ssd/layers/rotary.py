"""Rotary position embedding: plain, linear and Llama-3.x frequency scaling."""

import math

import torch
from torch import nn

from ssd.layers.build import Build
from ssd.layers.rope import Rope


def inverse_frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """Radians a position for each pair of channels: [head_dim / 2] float32, the precision models are trained with."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, frequencies)
    return frequencies


def _llama3(rope: Rope, frequencies: torch.Tensor) -> torch.Tensor:
    # Wavelengths beyond the original context are stretched by `factor`, short ones kept, those between are blended.
    longest = rope.original_max_position / rope.low_freq_factor
    shortest = rope.original_max_position / rope.high_freq_factor
    wavelengths = 2 * math.pi / frequencies
    scaled = frequencies / rope.factor
    keep = (rope.original_max_position / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - keep) * scaled + keep * frequencies
    result = torch.where(wavelengths > longest, scaled, frequencies)
    return torch.where((wavelengths >= shortest) & (wavelengths <= longest), blended, result)


class RotaryTable(nn.Module):
    """cos and sin of every position up to the model's limit, read once a step for all layers."""

    def __init__(self, rope: Rope, head_dim: int, max_position: int, build: Build) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(max_position).float(), inverse_frequencies(rope, head_dim))
        # 16-bit models rotate in float32. Halves are joined so that one lookup serves both.
        dtype = torch.promote_types(build.dtype, torch.float32)
        table = torch.cat([angles.cos(), angles.sin()], dim=-1).to(device=build.device, dtype=dtype)
        self.register_buffer("table", table, persistent=False)
        self.table: torch.Tensor

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        """positions [T] → cos | sin [T, head_dim]."""
        return self.table.index_select(0, positions)
