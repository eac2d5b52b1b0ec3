"""A process group of two for each epoch: gloo for headers and host memory, NCCL between two GPUs.

The groups are built directly, apart from torch's default one, so that any number of them come and go in a process. A
group that has timed out once is of no use any more and is dropped with its epoch.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo, Store

from ssd.tensor_plane.channel import Broken
from ssd.tensor_plane.framing import HEADER, Header

TARGET_RANK = 0
DRAFT_RANK = 1
MOST_RIDING = 256 << 10
HEADER_BYTES = HEADER * 8
_HEADER_TAG = 1
_DATA_TAG = 2
_POLL_S = 20e-6
# The first transfer sets the connection up, which takes seconds on some machines; an end may open for three limits.
_FIRST_LIMITS = 2.5

# A lost peer must not end this process, which is what the library does by default.
_NCCL_ENVIRONMENT = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "2", "TORCH_NCCL_ENABLE_MONITORING": "0"}


class Carrier(Protocol):
    """What takes the bytes of a bundle; the headers before them go over the link.

    rides   the largest bundle, in bytes, that goes along with its header instead
    """

    rides: int

    def offer(self, whole: Tensor) -> None:
        """Draft, before the header is sent."""

    def transfer(self, whole: Tensor) -> None:
        """Draft, after the header was sent; returns once uint8 [size] may be changed again."""

    def take(self, size: int) -> Tensor:
        """Target, after the header came: uint8 [size]."""

    def abort(self) -> None:
        """From any thread: what is under way must end."""


class Link:
    """Headers in both directions, with what rides along, and host memory in one."""

    def __init__(self, store: Store, rank: int, host: str, limit_s: float) -> None:
        """host: what this end's socket is bound to, "" = the address of the machine's name. Raises Broken when the
        other end does not come within limit_s."""
        self._limit_s = limit_s
        self._other = 1 - rank
        gloo: Any = ProcessGroupGloo  # the published stubs know little of it
        options = gloo._Options()
        options._timeout = timedelta(seconds=limit_s)
        device = gloo.create_device(hostname=host) if host else gloo.create_default_device()
        options._devices = [device]
        try:
            self._group = gloo(store, rank, 2, options)
        except RuntimeError as error:
            raise Broken(f"the other end did not come: {_short(error, limit_s)}") from error

    def send(self, header: Header, rider: Tensor | None = None) -> None:
        """Returns once the other end has it. rider: uint8, at most MOST_RIDING, that goes along."""
        packet = header.tensor().view(torch.uint8)
        if rider is not None:
            packet = torch.cat([packet, rider])
        self._wait(lambda: self._group.send([packet], self._other, _HEADER_TAG))

    def receive(self) -> tuple[Header, Tensor]:
        """The next header of the other end, and memory whose beginning is what went along, if anything did."""
        # gloo takes a shorter message into a longer buffer.
        packet = torch.empty(HEADER_BYTES + MOST_RIDING, dtype=torch.uint8)
        self._wait(lambda: self._group.recv([packet], self._other, _HEADER_TAG))
        return Header.read(packet[:HEADER_BYTES].view(torch.int64)), packet[HEADER_BYTES:]

    def send_bytes(self, whole: Tensor) -> None:
        """uint8 [size] in host memory."""
        self._wait(lambda: self._group.send([whole], self._other, _DATA_TAG))

    def receive_bytes(self, size: int) -> Tensor:
        """uint8 [size] in host memory."""
        whole = torch.empty(size, dtype=torch.uint8)
        self._wait(lambda: self._group.recv([whole], self._other, _DATA_TAG))
        return whole

    def _wait(self, start: Callable[[], Any]) -> None:
        try:
            start().wait(timedelta(seconds=self._limit_s))
        except RuntimeError as error:
            raise Broken(_short(error, self._limit_s)) from error


class GlooCarrier:
    """Host memory over the link. Tensors of a GPU are staged: gloo would read their addresses as the host's.

    Most bundles ride along: every transfer of its own is one more time that two threads have to be woken.
    """

    rides = MOST_RIDING

    def __init__(self, link: Link) -> None:
        self._link = link

    def offer(self, whole: Tensor) -> None:
        """Nothing goes before the header."""

    def transfer(self, whole: Tensor) -> None:
        """See Carrier."""
        if whole.is_cuda:
            staged = torch.empty(whole.shape, dtype=whole.dtype, pin_memory=True)
            whole = staged.copy_(whole)
        self._link.send_bytes(whole)

    def take(self, size: int) -> Tensor:
        """See Carrier."""
        return self._link.receive_bytes(size)

    def abort(self) -> None:
        """A wait on the link ends by its own limit."""


class NcclCarrier:
    """From one GPU to another, on the thread's own stream."""

    rides = 0

    def __init__(self, store: Store, rank: int, device: torch.device, limit_s: float) -> None:
        from torch.distributed import ProcessGroupNCCL

        for name, value in _NCCL_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        os.environ.setdefault("TORCH_NCCL_NONBLOCKING_TIMEOUT", str(math.ceil(_FIRST_LIMITS * limit_s)))
        self._limit_s, self._other, self._device = limit_s, 1 - rank, device
        self._aborted = threading.Event()
        self._allowed_s = _FIRST_LIMITS * limit_s  # for the next transfer
        options = ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=self._allowed_s)
        options.config.blocking = 0
        try:
            self._group: Any = ProcessGroupNCCL(store, rank, 2, options)
        except RuntimeError as error:
            raise Broken(f"nccl: {_short(error, limit_s)}") from error

    def offer(self, whole: Tensor) -> None:
        """Nothing goes before the header."""

    def transfer(self, whole: Tensor) -> None:
        """See Carrier."""
        there = whole.to(self._device)
        self._finish(lambda: self._group.send([there], self._other, 0))

    def take(self, size: int) -> Tensor:
        """See Carrier; the result is on this end's GPU."""
        whole = torch.empty(size, dtype=torch.uint8, device=self._device)
        self._finish(lambda: self._group.recv([whole], self._other, 0))
        return whole

    def abort(self) -> None:
        """See Carrier."""
        self._aborted.set()
        self._group.abort()

    def _finish(self, start: Callable[[], Any]) -> None:
        """Wait on the host, not on the stream: a peer that never comes must not hold the GPU's queue for ever."""
        allowed_s, self._allowed_s = self._allowed_s, self._limit_s
        deadline = time.monotonic() + allowed_s
        try:
            work = start()
            done = torch.cuda.Event()
            work.wait()  # orders the stream behind it, and does not block
            done.record()
            while not done.query():
                if self._aborted.is_set():
                    raise Broken("aborted")
                if time.monotonic() > deadline:
                    raise Broken(f"nccl: not done within {allowed_s:g} s")
                time.sleep(_POLL_S)
        except RuntimeError as error:
            raise Broken(f"nccl: {_short(error, self._limit_s)}") from error


def _short(error: RuntimeError, limit_s: float) -> str:
    """What has happened, without the library's sources and advice."""
    text = str(error)
    if "imed out" in text or "timeout" in text:
        return f"no answer within {limit_s:g} s"
    if "onnection" in text or "closed" in text:
        return "the other end is gone"
    return text.strip().splitlines()[0][:200] if text.strip() else type(error).__name__
