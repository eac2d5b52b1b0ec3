"""dtype and device by name; `auto` follows what the machine multiplies natively."""

import pytest
import torch

from ssd.runtime.device import cpu_multiplies_bfloat16, resolve_device, resolve_dtype


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
