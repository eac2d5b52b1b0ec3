"""dtype and device by name; `auto` follows what the machine multiplies natively."""

import os

import pytest
import torch

from ssd.errors import FieldError
from ssd.runtime.device import (
    MPS_SHARE,
    cpu_multiplies_bfloat16,
    launches_early,
    resolve_device,
    resolve_dtype,
    set_threads,
    take_share,
)


def test_names_and_dtypes_are_both_taken():
    cpu = torch.device("cpu")
    assert resolve_dtype("float64", cpu) == resolve_dtype(torch.float64, cpu) == torch.float64
    assert resolve_dtype("auto", cpu) in (torch.float32, torch.bfloat16)
    with pytest.raises(ValueError, match=r"dtype torch\.int8 is not supported"):
        resolve_dtype(torch.int8, cpu)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_bf16", True),
        ("flags\t\t: fpu amx_bf16 amx_tile", True),
        ("Features\t: fp asimd bf16", True),
        ("flags\t\t: fpu avx2 avx512f", False),
    ],
)
def test_bfloat16_is_chosen_by_the_cpus_own_flags(tmp_path, line, expected):
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{line}\n")
    assert cpu_multiplies_bfloat16(tmp_path / "cpuinfo") is expected
    assert not cpu_multiplies_bfloat16(tmp_path / "absent")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="finds no CUDA device"):
        resolve_device("cuda:0")


@pytest.mark.parametrize(("capability", "able"), [((8, 0), False), ((9, 0), True), ((10, 0), True)])
def test_kernels_are_launched_early_only_where_the_gpu_can(monkeypatch, capability, able):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert not launches_early("off", gpu)
    assert not launches_early("off", cpu)
    if able:
        assert launches_early("on", gpu)
    else:
        with pytest.raises(FieldError, match="early_launch: needs a GPU of compute capability 9"):
            launches_early("on", gpu)
    with pytest.raises(FieldError, match="the device is cpu"):
        launches_early("on", cpu)


def test_a_share_of_the_gpu_is_left_as_it_is_or_taken(monkeypatch):
    monkeypatch.setenv(MPS_SHARE, "85")
    take_share(0)
    assert os.environ[MPS_SHARE] == "85"
    take_share(30)
    assert os.environ[MPS_SHARE] == "30"


@pytest.mark.parametrize(
    ("threads", "device", "processes", "expected"),
    [(3, "cpu", 1, 3), (0, "cpu", 1, 4), (0, "cpu", 2, 2), (0, "cpu", 8, 1), (0, "cuda", 1, None), (2, "cuda:1", 1, 2)],
)
def test_services_on_a_cpu_leave_cores_for_each_other(monkeypatch, threads, device, processes, expected):
    chosen = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.setattr("ssd.runtime.device.cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    set_threads(threads, device, processes)
    assert chosen == ([] if expected is None else [expected])
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    set_threads(0, device, processes)
    assert chosen == ([] if expected is None else [expected]), "somebody else has chosen"
