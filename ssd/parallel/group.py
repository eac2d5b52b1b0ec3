"""How the ranks of one model find each other, and the process group that they form.

Ranks meet at a store: rank 0's own on the loopback where it starts the others, and elsewhere the one that torchrun's
variables name. Tensors on GPUs go through NCCL, those on the CPU (calls, and everything in tests) through gloo.
"""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from ssd.errors import FieldError
from ssd.layers.shard import Shard
from ssd.parallel.collectives import collective_for
from ssd.parallel.place import LOOPBACK, Place
from ssd.parallel.reasons import reason_of

MEET_WITHIN_S = 120.0
"""Longest that a rank waits for the others to start."""
LOAD_WITHIN_S = 1800.0
"""Longest that a rank waits for the others to load their weights. A rank that dies meanwhile ends the wait."""
_STORE = "ssd"
_CALL_EVERY_S = 0.5


def loopback_store(size: int) -> dist.TCPStore:
    """A store that nobody outside this machine can reach, on a free port."""
    return _held_store(socket.create_server((LOOPBACK, 0)), size)


def join_store(place: Place) -> dist.Store:
    """The store at the meeting place; rank 0 of ranks that others have started may have to hold it. FieldError where
    there is none in time, or another process has its port."""
    if place.parent:
        return _reached_store(place)
    if place.rank == 0 and not place.torchrun_holds:
        return dist.PrefixStore(_STORE, _held_store(_listening_at(place), place.size))
    _reach(place)
    try:
        return dist.PrefixStore(_STORE, _reached_store(place))
    except RuntimeError as error:
        raise FieldError("MASTER_ADDR", f"no store at {place.address}:{place.port}: {reason_of(error)}") from error


def listen_anywhere(port: int) -> socket.socket:
    """A listening socket on all addresses of this machine; port 0 = any free one."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _listening_at(place: Place) -> socket.socket:
    try:
        return listen_anywhere(place.port)
    except OSError as error:
        raise FieldError("MASTER_PORT", f"cannot listen on port {place.port}: {reason_of(error)}") from error


def _held_store(listening: socket.socket, size: int) -> dist.TCPStore:
    """A store of this process, which waits for nobody: who is absent is seen, and named, where the ranks gather."""
    return dist.TCPStore(
        LOOPBACK,
        listening.getsockname()[1],
        size,
        is_master=True,
        timeout=timedelta(seconds=MEET_WITHIN_S),
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )


def _reached_store(place: Place) -> dist.Store:
    limit = timedelta(seconds=MEET_WITHIN_S)
    if not place.torchrun_holds:
        return dist.TCPStore(place.address, place.port, place.size, timeout=limit, wait_for_workers=False)
    # Knows how torchrun tells its restarts apart.
    store: dist.Store = next(dist.rendezvous("env://", place.rank, place.size, timeout=limit))[0]
    return store


def _reach(place: Place) -> None:
    """Waits until somebody listens at the meeting place. The store's own attempts have no limit for a name that does
    not resolve, and say why in many lines."""
    deadline = time.monotonic() + MEET_WITHIN_S
    while True:
        try:
            socket.create_connection((place.address, place.port), timeout=MEET_WITHIN_S).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                where = f"{place.address}:{place.port}"
                reason = f"nobody listens at {where} within {MEET_WITHIN_S:g} s: {reason_of(error)}"
                raise FieldError("MASTER_ADDR", reason) from error
        time.sleep(_CALL_EVERY_S)


@dataclass(frozen=True)
class Group:
    """This process's part of a group that has formed."""

    shard: Shard
    store: dist.Store

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Fills a CPU tensor with rank 0's. RuntimeError where a rank is gone or does not take part in time."""
        dist.broadcast(tensor, src=0)

    def all_loaded(self) -> None:
        """Waits for every rank to come here: weights load at different speeds, and steps wait less patiently."""
        self.store.set(f"loaded/{self.shard.rank}", "1")
        names = [f"loaded/{rank}" for rank in range(self.shard.size)]
        self.store.wait(names, timedelta(seconds=LOAD_WITHIN_S))


def form(
    place: Place,
    store: dist.Store,
    device: torch.device,
    dtype: torch.dtype,
    *,
    all_reduce: str,
    deterministic: bool,
    timeout_s: float,
) -> Group:
    """The group of all ranks, once they are there. `timeout_s`: longest that an operation waits for a rank."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
        # Whoever watches the ranks ends them in order; NCCL's own watchdogs would end a process in mid-answer.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
        os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
        # Multicast needs a fabric manager that not every machine runs; without one NCCL would fail at its start.
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    with _on_loopback() if place.address == LOOPBACK else contextlib.nullcontext():
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            store=dist.PrefixStore("group", store),
            rank=place.rank,
            world_size=place.size,
            timeout=timedelta(seconds=timeout_s),
        )
    collective = collective_for(device, dtype, all_reduce, deterministic=deterministic)
    return Group(Shard(place.rank, place.size, collective), store)


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """A group that gloo forms meanwhile stays on this machine, whose own name need not resolve to an address that it
    can reach. Other groups of the process may span machines."""
    name = "GLOO_SOCKET_IFNAME"
    if name in os.environ:
        yield
        return
    os.environ[name] = "lo"
    try:
        yield
    finally:
        del os.environ[name]
