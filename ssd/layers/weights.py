"""The loading side of a layer: which checkpoint tensors it takes, and which part of each is its own."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn


class Source(Protocol):
    """A tensor in a checkpoint that is read only where it is indexed (a safetensors slice)."""

    def get_shape(self) -> list[int]: ...

    def __getitem__(self, index: Any) -> torch.Tensor: ...


class WeightShapeError(ValueError):
    """A checkpoint tensor has another shape than the configuration implies."""


class Layer(nn.Module):
    """A module with weights of its own.

    `parts` are the names that the layer has in a checkpoint where several products are packed into one here
    (q_proj, k_proj, v_proj → qkv_proj); empty for a layer that is stored under its own name.
    """

    parts: Sequence[str] = ()

    def load(self, parameter: str, source: Source, part: str = "") -> None:
        """Copies this rank's share of `source` into `parameter`; WeightShapeError where the shapes differ."""
        raise NotImplementedError


def expect_shape(source: Source, shape: Sequence[int]) -> None:
    """WeightShapeError unless the whole tensor in the checkpoint has this shape."""
    found = list(source.get_shape())
    if found != list(shape):
        raise WeightShapeError(f"has shape {found}, the configuration implies {list(shape)}")
