"""Tensors of one step that keep their place: a host buffer that is filled, and its copy on the device.

Everything that a step reads crosses in one copy, and what has been captured in a CUDA graph finds it where it was.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

_ALIGNMENT = 16
"""Words between the beginnings of fields, a power of two: kernels are compiled for how their pointers are aligned."""


@dataclass(frozen=True)
class Field:
    """One tensor of 64-bit numbers. `blank` fills what a step leaves free, or all of it before the first one."""

    shape: tuple[int, ...]
    blank: int = 0
    real: bool = False
    """float64 instead of int64."""


class StaticInputs:
    """`host[name]` (numpy) is written, `upload` brings all of it to `device[name]` (torch, the same shape)."""

    def __init__(self, fields: Mapping[str, Field], device: torch.device) -> None:
        offsets, total = {}, 0
        for name, field in fields.items():
            offsets[name] = total
            total += -(-math.prod(field.shape) // _ALIGNMENT) * _ALIGNMENT
        self._on_gpu = device.type == "cuda"
        self._host = torch.zeros(total, dtype=torch.int64, pin_memory=self._on_gpu)
        self._device = torch.zeros(total, dtype=torch.int64, device=device)
        self._copied = torch.cuda.Event() if self._on_gpu else None
        words = self._host.numpy()
        self.host: dict[str, np.ndarray[Any, Any]] = {}
        self.device: dict[str, torch.Tensor] = {}
        for name, field in fields.items():
            first, size = offsets[name], math.prod(field.shape)
            here, there = words[first : first + size], self._device[first : first + size]
            if field.real:
                here, there = here.view(np.float64), there.view(torch.float64)
            self.host[name] = here.reshape(field.shape)
            self.device[name] = there.view(field.shape)
            self.host[name][...] = field.blank
        self._words = words
        self._blank = words.copy()

    def clear(self) -> None:
        """Makes the host's side blank. Waits until the last upload is through."""
        if self._copied is not None:
            self._copied.synchronize()
        self._words[:] = self._blank

    def upload(self) -> None:
        """Brings the host's side to the device, without waiting for it."""
        self._device.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()


class StaticResults:
    """Results [steps, …] int64 that leave the device in one copy."""

    def __init__(self, shape: Sequence[int], device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self.device = torch.zeros(tuple(shape), dtype=torch.int64, device=device)
        self._host = torch.zeros(tuple(shape), dtype=torch.int64, pin_memory=self._on_gpu)
        self._copied = torch.cuda.Event() if self._on_gpu else None

    def send(self, steps: int) -> None:
        """Has the first `steps` results copied once they are computed, without waiting."""
        self._host[:steps].copy_(self.device[:steps], non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    @property
    def arrived(self) -> bool:
        """Whether what was sent last is here."""
        return self._copied is None or self._copied.query()

    def received(self, steps: int) -> np.ndarray[Any, Any]:
        """The first `steps` results of those sent last, once they are here; good until the next are sent."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host[:steps].numpy()

    def fetch(self, steps: int) -> np.ndarray[Any, Any]:
        """Sends the first `steps` results and receives them."""
        self.send(steps)
        return self.received(steps)
