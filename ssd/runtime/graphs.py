"""Running a fixed piece of device work again and again: as it is, or captured in a CUDA graph."""

from collections.abc import Callable
from typing import Any, Protocol

import torch

Work = Callable[[], None]
"""Reads and writes tensors that keep their place, and waits for nothing."""


class Executor(Protocol):
    """How work that will be repeated is prepared."""

    captures: int
    """Pieces of work captured so far."""

    def prepare(self, work: Work) -> Work:
        """What does the same as `work` each time it is called. `work` may be run meanwhile, on what its tensors hold
        now."""
        ...


class Eager:
    """Runs the work itself: on the CPU, and where a GPU's backend cannot be captured."""

    captures = 0

    def prepare(self, work: Work) -> Work:
        return work


class CudaGraphs:
    """Captures the work. All graphs share one memory pool, so that only results which are kept add up."""

    def __init__(self, device: torch.device) -> None:
        self.captures = 0
        self._device = device
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    def prepare(self, work: Work) -> Work:
        with torch.cuda.device(self._device):
            if self._pool is None or self._stream is None:
                self._pool = torch.cuda.graph_pool_handle()
                self._stream = torch.cuda.Stream()
            stream, graph = self._stream, torch.cuda.CUDAGraph()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                # Kernels are compiled and tuned now, which a capture would not survive. The second run finds them all.
                work()
                work()
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
            # Other threads may use the device meanwhile: one that loads a model, one that copies.
            with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
                work()
            torch.cuda.current_stream().wait_stream(stream)
        self.captures += 1
        return graph.replay


def device_allocations(device: torch.device) -> int:
    """Allocations asked of torch on this device since the process began; 0 on the CPU."""
    return torch.cuda.memory_stats(device).get("allocation.all.allocated", 0) if device.type == "cuda" else 0
