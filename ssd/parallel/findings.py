"""What a machine has that a model over several GPUs depends on. Looks, and changes nothing."""

import importlib.util
import os
import platform
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from itertools import permutations
from pathlib import Path

import torch
import torch.distributed as dist

from ssd.models.cache import cache_root
from ssd.parallel.reasons import reason_of

SHARED_MEMORY = Path("/dev/shm")
PACKAGES = ("torch", "triton", "flash-attn", "flash-attn-4", "grpcio")
_MPS_PIPES = "/tmp/nvidia-mps"  # where CUDA itself looks unless CUDA_MPS_PIPE_DIRECTORY says otherwise


@dataclass(frozen=True)
class Gpu:
    """`free` and `total` bytes; None: not asked for."""

    name: str
    free: int | None
    total: int


@dataclass(frozen=True)
class Findings:
    """gpus by number · apart: pairs of GPUs that cannot reach each other's memory · shared_memory: bytes of /dev/shm ·
    versions: of packages and libraries, those that are there · backends: of torch.distributed · mps: whether NVIDIA's
    multi-process service runs · models: converted ones in the cache · taken: of the addresses asked about, those that
    cannot be bound, with the reason."""

    gpus: tuple[Gpu, ...] = ()
    apart: tuple[tuple[int, int], ...] = ()
    shared_memory: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    backends: tuple[str, ...] = ()
    mps: bool = False
    models: tuple[str, ...] = ()
    taken: Mapping[str, str] = field(default_factory=dict)


def look(addresses: Sequence[str] = (), *, memory: bool = True) -> Findings:
    """What is there now. `addresses`: host:port, to see whether they are free. `memory`: how much of each GPU is free,
    which costs this process some memory on each of them for as long as it lives."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return Findings(
        gpus=tuple(_gpu(number, memory) for number in range(count)),
        apart=tuple(pair for pair in permutations(range(count), 2) if not torch.cuda.can_device_access_peer(*pair)),
        shared_memory=_size_of(SHARED_MEMORY),
        versions=_versions(),
        backends=tuple(name for name in ("gloo", "nccl") if getattr(dist, f"is_{name}_available")()),
        mps=(Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _MPS_PIPES)) / "control").exists(),
        models=_cached(cache_root()),
        taken={address: reason for address in addresses if (reason := _taken(address))},
    )


def _gpu(number: int, memory: bool) -> Gpu:
    known = torch.cuda.get_device_properties(number)
    return Gpu(known.name, torch.cuda.mem_get_info(number)[0] if memory else None, known.total_memory)


def _size_of(folder: Path) -> int:
    try:
        status = os.statvfs(folder)
    except OSError:
        return 0
    return status.f_frsize * status.f_blocks


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if dist.is_nccl_available() and importlib.util.find_spec("torch.cuda.nccl") is not None:
        from torch.cuda import nccl

        found["nccl"] = ".".join(str(part) for part in nccl.version())
    return found


def _cached(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.parent.name for path in folder.glob("models/*/config.json")))


def _taken(address: str) -> str:
    """Why it cannot be bound; empty if it can."""
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host.strip("[]"), int(port)), family=family).close()
    except OSError as error:
        return reason_of(error)
    return ""
