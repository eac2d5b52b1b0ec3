"""Safetensors straight to a GPU: files are read into pinned buffers by threads while earlier parts cross.

Neither a whole copy on the host nor the pages of a mapping stand between disk and device, so that a large model loads
at about the speed of the disk.
"""

import json
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ssd.models.errors import ModelError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
CHUNK_BYTES = 32 << 20
_CHUNKS = 6
"""Pinned buffers, and so reads under way."""


@dataclass(frozen=True)
class Stored:
    """One tensor in a file: `first` and `stop` are bytes from the file's beginning."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    first: int
    stop: int


class DeviceTensor:
    """A Source whose content is on the device already; see ssd.layers.weights."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._tensor[index]


class Staging:
    """Pinned buffers and a device buffer of one loading. Close it afterwards."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        on_gpu = device.type == "cuda"
        self._pinned = [torch.empty(CHUNK_BYTES, dtype=torch.uint8, pin_memory=on_gpu) for _ in range(_CHUNKS)]
        self._crossed = [torch.cuda.Event() if on_gpu else None for _ in range(_CHUNKS)]
        self._landing = torch.empty(0, dtype=torch.uint8, device=device)
        self._readers = ThreadPoolExecutor(_CHUNKS, thread_name_prefix="load")

    def close(self) -> None:
        """Ends the threads and gives the buffers back."""
        self._readers.shutdown()
        self._pinned, self._landing = [], self._landing.new_empty(0)

    def read(self, path: Path, wanted: set[str]) -> Iterator[tuple[str, DeviceTensor]]:
        """Wanted tensors of one file, in the order they lie in. A tensor is good until the next one is asked for."""
        stored = [one for one in header(path) if one.name in wanted]
        with path.open("rb", buffering=0) as file:
            parts = ((one, start) for one in stored for start in range(one.first, one.stop, CHUNK_BYTES))
            reads = self._ahead(file.fileno(), path, parts)
            for one in stored:
                size = one.stop - one.first
                if self._landing.numel() < size:
                    self._landing = torch.empty(size, dtype=torch.uint8, device=self._device)
                for start in range(0, size, CHUNK_BYTES):
                    number, done = next(reads)
                    count = done.result()
                    self._landing[start : start + count].copy_(self._pinned[number][:count], non_blocking=True)
                    if (event := self._crossed[number]) is not None:
                        event.record()
                yield one.name, DeviceTensor(self._landing[:size].view(one.dtype).view(one.shape))

    def _ahead(
        self, descriptor: int, path: Path, parts: Iterator[tuple[Stored, int]]
    ) -> Iterator[tuple[int, "Future[int]"]]:
        """Reads under way, in order: (buffer, future of the bytes in it). The buffer of one is free again when the
        next is asked for and its event has passed."""
        waiting: list[tuple[int, Future[int]]] = []
        for number, (one, start) in enumerate(parts):
            buffer = number % _CHUNKS
            count = min(CHUNK_BYTES, one.stop - start)
            if len(waiting) == _CHUNKS:
                yield waiting.pop(0)
            waiting.append((buffer, self._readers.submit(self._fill, descriptor, path, buffer, start, count)))
        yield from waiting

    def _fill(self, descriptor: int, path: Path, buffer: int, start: int, count: int) -> int:
        if (event := self._crossed[buffer]) is not None:
            event.synchronize()
        view, done = self._pinned[buffer].numpy()[:count], 0
        while done < count:
            got = os.preadv(descriptor, [view[done:].data], start + done)
            if got == 0:
                raise ModelError(f"{path} ends before its tensors do")
            done += got
        return count


def header(path: Path) -> list[Stored]:
    """The tensors of a safetensors file by their place in it; ModelError for a dtype that no model here has."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        described = json.loads(file.read(length))
    found = []
    for name, entry in described.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in DTYPES:
            raise ModelError(f"{path}: {name} is of dtype {entry['dtype']}; supported: {', '.join(DTYPES)}")
        first, stop = (8 + length + offset for offset in entry["data_offsets"])
        found.append(Stored(name, DTYPES[entry["dtype"]], tuple(entry["shape"]), first, stop))
    return sorted(found, key=lambda one: one.first)
