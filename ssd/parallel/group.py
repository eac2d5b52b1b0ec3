"""How the ranks of one model find each other, and the process group that they form.

Ranks meet at a store: rank 0's own on the loopback where it starts the others, and elsewhere the one that torchrun's
variables name. Tensors on GPUs go through NCCL, those on the CPU (calls, and everything in tests) through gloo.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from ssd.layers.shard import Shard
from ssd.parallel.collectives import collective_for
from ssd.parallel.place import LOOPBACK, Place

MEET_WITHIN_S = 120.0
"""Longest that a rank waits for the others to start."""
LOAD_WITHIN_S = 1800.0
"""Longest that a rank waits for the others to load their weights. A rank that dies meanwhile ends the wait."""
_STORE = "ssd"


def loopback_store(size: int) -> dist.TCPStore:
    """A store that nobody outside this machine can reach, on a free port."""
    listening = socket.create_server((LOOPBACK, 0))
    port = listening.getsockname()[1]
    return dist.TCPStore(
        LOOPBACK,
        port,
        size,
        is_master=True,
        timeout=timedelta(seconds=MEET_WITHIN_S),
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )


def join_store(place: Place) -> dist.Store:
    """The store at the meeting place; rank 0 of ranks that others have started may have to hold it."""
    limit = timedelta(seconds=MEET_WITHIN_S)
    if place.parent:
        return dist.TCPStore(place.address, place.port, place.size, timeout=limit, wait_for_workers=False)
    # Knows whether torchrun holds the store already.
    store, _, _ = next(dist.rendezvous("env://", place.rank, place.size, timeout=limit))
    found: dist.Store = dist.PrefixStore(_STORE, store)
    return found


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
