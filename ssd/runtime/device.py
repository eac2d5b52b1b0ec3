"""Which device and which dtype a model runs in."""

import importlib
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from ssd.cores import cores
from ssd.errors import FieldError

MPS_SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def resolve_device(name: str | torch.device) -> torch.device:
    """A device that is really there; ValueError says which one is not."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device {name!r} is not known: {str(error).splitlines()[0]}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r}: torch finds no CUDA device on this machine")
    if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
        raise ValueError(f"device {name!r}: this machine has {torch.cuda.device_count()} CUDA devices")
    return device


def on_gpu(device: torch.device) -> AbstractContextManager[Any]:
    """The GPU `device` as this thread's own meanwhile; nothing for other devices."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def resolve_dtype(name: str | torch.dtype, device: torch.device) -> torch.dtype:
    """dtype by name. "auto" is bfloat16 where the device multiplies it natively, else float32 (CPU) or float16
    (GPU)."""
    if isinstance(name, torch.dtype):
        if name not in DTYPES.values():
            raise ValueError(f"dtype {name} is not supported; supported: {', '.join(DTYPES)}")
        return name
    if name != "auto":
        if name not in DTYPES:
            raise ValueError(f"dtype {name!r} is not known; known: auto, {', '.join(DTYPES)}")
        return DTYPES[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch.bfloat16 if cpu_multiplies_bfloat16() else torch.float32


def resolve_deterministic(switch: str, dtype: str | torch.dtype, device: str | torch.device) -> bool:
    """Whether a target computes batch by batch alike: `switch` "on" or "off", or "auto" = only where rounding differs
    visibly between batches, 16 bits on the CPU."""
    if switch != "auto":
        return switch == "on"
    device = resolve_device(device)
    return device.type == "cpu" and resolve_dtype(dtype, device).itemsize == 2


def can_launch_early(device: torch.device) -> bool:
    """Whether kernels can be launched on it while the one before still runs: a GPU of compute capability 9 or more that
    is there."""
    there = device.type == "cuda" and torch.cuda.is_available()
    return there and torch.cuda.get_device_capability(device) >= (9, 0)


def launches_early(switch: str, device: torch.device) -> bool:
    """Whether Triton's kernels are launched while the one before still runs: `switch` is "on" or "off".

    FieldError where the device cannot."""
    if switch == "on" and not can_launch_early(device):
        raise FieldError("early_launch", f"needs a GPU of compute capability 9 or more; the device is {device}")
    return switch == "on"


def set_threads(threads: int, device: str, processes: int = 1) -> None:
    """Has torch compute with so many threads. 0: on a CPU half of its cores, shared by `processes`, as target and draft
    are busy at once and threads that outnumber the cores wait for each other in barriers; torch's own choice on a GPU,
    and where OMP_NUM_THREADS makes one."""
    if not threads:
        if not device.startswith("cpu") or "OMP_NUM_THREADS" in os.environ:
            return
        threads = max(1, cores() // (2 * processes))
    torch.set_num_threads(threads)


def take_share(percent: int) -> None:
    """Bounds this process to a part of the multiprocessors of a GPU that it shares under MPS; 0 leaves it as it is.
    To be called before anything touches CUDA, which reads it once. Without MPS it has no effect."""
    if percent:
        os.environ[MPS_SHARE] = str(percent)


def shared_under_mps(device: torch.device) -> bool:
    """Whether this process has the GPU through MPS.

    With a part of the multiprocessors cuBLAS's products in 16 bits are wrong there: of 65 to 256 rows whole tiles are
    never written, or parts of their sums left out (cuBLAS of CUDA 13.0 on an H200, at 60 and 85 %; docs/engine.md).
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return False
    try:
        # Its driver's bindings come with torch for CUDA alone.
        return bool(importlib.import_module("ssd.kernels.cuda").mps_enabled(device))
    except (ImportError, RuntimeError):
        return MPS_SHARE in os.environ or "CUDA_MPS_PIPE_DIRECTORY" in os.environ


def cpu_multiplies_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU has bfloat16 product instructions; without them float32 is the faster dtype."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    features = {word for line in lines if line.startswith(("flags", "Features")) for word in line.split()}
    return bool(features & {"avx512_bf16", "amx_bf16", "bf16"})
