"""Kernels in CUDA C++, compiled when they are needed (NVRTC) and launched on torch's stream."""

import ctypes
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cuda.bindings import driver, nvrtc

Argument = torch.Tensor | int | float | None
"""A tensor's memory, a 32-bit number, or no memory."""


class CudaError(RuntimeError):
    """A call of the CUDA driver or compiler that failed."""


class CudaKernel:
    """The function `name` of a source file, compiled for one device. defines: macros of this variant."""

    def __init__(self, source: Path, name: str, defines: dict[str, int], device: torch.device) -> None:
        self.device = device
        with torch.cuda.device(device):
            major, minor = torch.cuda.get_device_capability(device)
            image = np.frombuffer(compile_source(source, defines, f"sm_{major}{minor}"), dtype=np.uint8)
            torch.cuda.current_stream(device).synchronize()  # the driver needs torch's context to be there
            self._module = checked(driver.cuModuleLoadData(image.ctypes.data))
            self._function = checked(driver.cuModuleGetFunction(self._module, name.encode()))

    def allow_shared(self, size: int) -> None:
        """Lets a block have `size` bytes of shared memory; CudaError where that is more than there is."""
        most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(driver.cuFuncSetAttribute(self._function, most, size))

    def clusters_at_once(self, cluster: int, grid: int, threads: int, shared: int) -> int:
        """How many clusters of so many blocks are on the device together, by its own count."""
        config, attribute = _launch_shape(grid, threads, shared), driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cluster, 1, 1
        config.attrs, config.numAttrs = [attribute], 1
        with torch.cuda.device(self.device):
            return int(checked(driver.cuOccupancyMaxActiveClusters(self._function, config)))

    def launch(
        self, grid: int, threads: int, shared: int, arguments: Sequence[Argument], *, early: bool = False
    ) -> None:
        """On the current stream; a capture takes it in. early: also while the kernel before still runs."""
        config, attribute = _launch_shape(grid, threads, shared), driver.CUlaunchAttribute()
        config.hStream = driver.CUstream(torch.cuda.current_stream(self.device).cuda_stream)
        if early:
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        values, kinds = zip(*map(_as_c, arguments), strict=True)
        checked(driver.cuLaunchKernelEx(config, self._function, (values, kinds), 0))


def _launch_shape(grid: int, threads: int, shared: int) -> Any:
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = shared
    return config


def mps_enabled(device: torch.device) -> bool:
    """Whether contexts on this device share it through MPS."""
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    # By the order that torch counts in, which is CUDA's.
    handle = checked(driver.cuDeviceGet(index))
    return bool(checked(driver.cuDeviceGetAttribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MPS_ENABLED, handle)))


def compile_source(source: Path, defines: dict[str, int], architecture: str) -> bytes:
    """The device code of a source file; CudaError with the compiler's words where it has none."""
    program = checked(nvrtc.nvrtcCreateProgram(source.read_bytes(), source.name.encode(), 0, [], []))
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "-default-device"]
    options += [f"-D{name}={value}" for name, value in defines.items()]
    try:
        (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            said = _bytes_of(partial(nvrtc.nvrtcGetProgramLogSize, program), partial(nvrtc.nvrtcGetProgramLog, program))
            raise CudaError(f"{source.name} does not compile for {architecture}: {said.decode(errors='replace')}")
        return _bytes_of(partial(nvrtc.nvrtcGetCUBINSize, program), partial(nvrtc.nvrtcGetCUBIN, program))
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def checked(answer: tuple[Any, ...]) -> Any:
    """What a call gave behind its status; CudaError where that is not success."""
    status, *given = answer
    if int(status) != 0:
        raise CudaError(f"CUDA: {status.name}")
    return given[0] if given else None


def _bytes_of(size: partial[Any], fill: partial[Any]) -> bytes:
    there = b" " * int(checked(size()))
    checked(fill(there))
    return there


def _as_c(argument: Argument) -> tuple[int | float, Any]:
    if argument is None:
        return 0, ctypes.c_void_p
    if isinstance(argument, torch.Tensor):
        return argument.data_ptr(), ctypes.c_void_p
    return argument, ctypes.c_float if isinstance(argument, float) else ctypes.c_int
