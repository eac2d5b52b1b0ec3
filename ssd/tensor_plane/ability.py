"""What this process could do as one end of a plane."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

from ssd.tensor_plane.choice import Ability, Kind

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_IPC_NAMESPACE = Path("/proc/self/ns/ipc")


def ability(device: torch.device | str) -> Ability:
    """Of a process whose tensors are on `device`."""
    device = indexed(device)
    kinds: set[Kind] = set()
    if dist.is_available() and dist.is_gloo_available():
        kinds.add(Kind.GLOO)
    if device.type != "cuda":
        return Ability(host_id(), (), frozenset(kinds))
    # Headers and rendezvous of every kind go through gloo.
    if kinds:
        kinds.add(Kind.CUDA_IPC)
        if dist.is_nccl_available():
            kinds.add(Kind.NCCL)
    return Ability(host_id(), (str(torch.cuda.get_device_properties(device).uuid),), frozenset(kinds))


def indexed(device: torch.device | str) -> torch.device:
    """The same device, by its number where it is a GPU."""
    where = torch.device(device)
    return torch.device("cuda", torch.cuda.current_device()) if str(where) == "cuda" else where


def host_id() -> str:
    """Equal for two processes on one running kernel that share its IPC namespace, as two pods of a host need not; ""
    where that cannot be known. Host names are no help: they may be equal on two machines, or differ on one."""
    try:
        return f"{_BOOT_ID.read_text().strip()}/{_IPC_NAMESPACE.readlink()}"
    except OSError:
        return ""
