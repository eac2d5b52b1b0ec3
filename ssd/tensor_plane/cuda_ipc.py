"""Bytes through device memory that both processes have mapped: for a draft and a target that share one GPU.

The target allocates the ring and the draft opens it, so a draft that dies takes nothing away. Two slots suffice: the
draft fills one before it sends a header, and the header of the bundle after the next is only taken once that slot was
read, because the target reads a bundle before it takes another header.
"""

from __future__ import annotations

import base64
import json
import threading
from datetime import timedelta

import torch
from torch import Tensor
from torch.distributed import Store

from ssd.tensor_plane.channel import MOST_BYTES, Broken
from ssd.tensor_plane.pair_channel import LOAD_BYTES

SLOTS = 2
SLOT_BYTES = max(MOST_BYTES, LOAD_BYTES)
_KEY = "ring"


class IpcCarrier:
    """See process_group.Carrier."""

    rides = 0

    def __init__(self, ring: Tensor) -> None:
        """ring: uint8 [SLOTS, SLOT_BYTES] on the shared GPU."""
        self._ring = ring
        self._count = 0  # the same at both ends, since every transfer takes the next slot
        self._aborted = threading.Event()

    def offer(self, whole: Tensor) -> None:
        """Write the next slot; a header may tell of it once this returns."""
        if self._aborted.is_set():
            raise Broken("aborted")
        self._copy(self._next_slot()[: len(whole)], whole)

    def transfer(self, whole: Tensor) -> None:
        """It is there already."""

    def take(self, size: int) -> Tensor:
        """Read the next slot: uint8 [size] on the GPU, a copy."""
        whole = torch.empty(size, dtype=torch.uint8, device=self._ring.device)
        self._copy(whole, self._next_slot()[:size])
        return whole

    def abort(self) -> None:
        """A copy within one GPU ends by itself."""
        self._aborted.set()

    def _next_slot(self) -> Tensor:
        slot, self._count = self._ring[self._count % SLOTS], self._count + 1
        return slot

    def _copy(self, into: Tensor, source: Tensor) -> None:
        try:
            into.copy_(source, non_blocking=True)
            torch.cuda.current_stream(self._ring.device).synchronize()
        except RuntimeError as error:
            raise Broken(f"cuda_ipc: {str(error).splitlines()[0][:200]}") from error


def share_ring(store: Store, device: torch.device) -> IpcCarrier:
    """Target: allocate the ring and leave its handle in the store."""
    try:
        ring = torch.zeros(SLOTS, SLOT_BYTES, dtype=torch.uint8, device=device)
        torch.cuda.current_stream(device).synchronize()
        handle = ring.untyped_storage()._share_cuda_()
    except RuntimeError as error:
        raise Broken(f"cuda_ipc: {str(error).splitlines()[0][:200]}") from error
    store.set(_KEY, json.dumps([_packed(part) for part in handle]))
    return IpcCarrier(ring)


def open_ring(store: Store, device: torch.device, limit_s: float) -> IpcCarrier:
    """Draft: map the target's ring; Broken where it does not come within limit_s or cannot be mapped."""
    try:
        store.wait([_KEY], timedelta(seconds=limit_s))
        handle = [_unpacked(part) for part in json.loads(store.get(_KEY))]
        handle[0] = device.index  # the same GPU may have another number here
        torch.cuda.init()
        storage = torch.UntypedStorage._new_shared_cuda(*handle)
        ring = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)[: SLOTS * SLOT_BYTES]
        return IpcCarrier(ring.view(SLOTS, SLOT_BYTES))
    except (RuntimeError, ValueError, TypeError) as error:
        raise Broken(f"cuda_ipc: {str(error).splitlines()[0][:200]}") from error


def _packed(part: object) -> object:
    return {"bytes": base64.b64encode(part).decode()} if isinstance(part, bytes) else part


def _unpacked(part: object) -> object:
    return base64.b64decode(part["bytes"]) if isinstance(part, dict) else part
