"""Attention backends by name."""

import importlib
import importlib.util

import structlog
import torch

from ssd.layers.attention import AttentionBackend, WholeBackend
from ssd.layers.attention_torch import TorchAttention
from ssd.runtime.device import can_launch_early

log = structlog.get_logger()

BACKENDS = ("auto", "torch", "triton", "flash_attn")


def attention_backend(
    name: str, device: torch.device, *, deterministic: bool = False, early: bool = False
) -> AttentionBackend:
    """The backend of this name; "auto" is triton on a GPU that has it, and torch elsewhere. early: Triton's kernels are
    launched while the one before still runs (compute capability 9).

    ValueError for an unknown name, a backend that is not installed, and flash_attn in deterministic mode.
    """
    if name not in BACKENDS:
        raise ValueError(f"attention backend {name!r} is not known; known: {', '.join(BACKENDS)}")
    if name == "auto":
        name = "triton" if device.type == "cuda" and _installed("triton") else "torch"
    if name == "torch":
        return TorchAttention(deterministic=deterministic)
    if not _installed("triton"):
        raise ValueError(f"attention backend {name!r} needs the package triton, which is not installed")
    # Only now: Triton and what is built on it are not installed everywhere.
    own: AttentionBackend = importlib.import_module("ssd.layers.attention_triton").TritonAttention(
        deterministic=deterministic,
        early=early,
        before_early=can_launch_early(device),
        small=None if deterministic else _small_attention(device),
    )
    if name == "triton":
        return own
    if deterministic:
        raise ValueError("attention backend 'flash_attn' is not deterministic; 'triton' and 'torch' can be")
    flash = importlib.import_module("ssd.layers.attention_flash")
    backend: AttentionBackend = flash.FlashAttention(flash.find_flash_kernel(), own)
    return backend


def _small_attention(device: torch.device) -> WholeBackend | None:
    try:
        # What compiles it comes with torch for CUDA alone.
        made: WholeBackend | None = importlib.import_module("ssd.kernels.attend").make_attention(device)
    except ImportError as error:
        log.info("no kernel of whole attention", reason=str(error))
        return None
    return made


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
