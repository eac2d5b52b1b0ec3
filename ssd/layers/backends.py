"""Attention backends by name."""

import torch

from ssd.layers.attention import AttentionBackend
from ssd.layers.attention_torch import TorchAttention

BACKENDS = ("auto", "torch")


def attention_backend(name: str, device: torch.device, *, deterministic: bool = False) -> AttentionBackend:
    """The backend of this name, or for "auto" the fastest one that the device has; ValueError for an unknown name."""
    if name not in BACKENDS:
        raise ValueError(f"attention backend {name!r} is not known; known: {', '.join(BACKENDS)}")
    return TorchAttention(deterministic=deterministic)
