"""On a GPU under MPS, where cuBLAS leaves out parts of its products: ours are whole."""

import os
import subprocess
import sys

import pytest
import torch

from bench.run.mps import MpsUnavailable, mps
from ssd.layers.ops import TorchOps, make_ops
from ssd.runtime import device as devices
from ssd.runtime.device import MPS_SHARE, shared_under_mps

CHECK = """
import sys
import torch
from ssd.layers.ops import make_ops

gpu, wrong = torch.device("cuda"), []
ops = make_ops("auto", gpu, torch.bfloat16)
for outputs, inputs in [(10240, 5120), (5120, 8192), (5120, 25600), (4096, 1024)]:
    weight = (torch.randn(outputs, inputs, device=gpu) * 0.02).bfloat16()
    columns = torch.randint(0, outputs, (100,), device=gpu)
    for rows in (1, 16, 64, 65, 77, 96, 112, 128, 192, 256, 512):
        x = torch.randn(rows, inputs, device=gpu).bfloat16()
        poison = torch.full((rows, outputs), float("nan"), device=gpu, dtype=torch.bfloat16)
        del poison  # what is not written is likely this
        given = ops.linear(x, weight, None)[:, columns].float()
        # No library's product.
        expected = (x.float()[:, None] * weight[columns].float()).sum(-1)
        if not ((given - expected).abs() <= 0.1 + 0.02 * expected.abs()).all():
            wrong.append((outputs, inputs, rows))
sys.exit(f"wrong: {wrong}" if wrong else 0)
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine")
@pytest.mark.parametrize("share", ["60", "85", "100"])
def test_products_are_whole_under_mps(share):
    try:
        with mps({**os.environ, MPS_SHARE: share}) as variables:
            done = subprocess.run(
                [sys.executable, "-c", CHECK], env={**os.environ, **variables}, capture_output=True, timeout=120
            )
    except MpsUnavailable as error:
        pytest.skip(str(error))
    assert done.returncode == 0, done.stderr.decode()[-2000:]


def test_torchs_products_are_refused_where_they_would_be_wrong(monkeypatch):
    monkeypatch.setattr("ssd.layers.ops.shared_under_mps", lambda device: True)
    gpu = torch.device("cuda")
    with pytest.raises(ValueError, match="under MPS"):
        make_ops("torch", gpu, torch.bfloat16)
    assert isinstance(make_ops("torch", gpu, torch.float32), TorchOps)


def test_a_cpu_is_not_shared_under_mps(monkeypatch):
    monkeypatch.setenv(MPS_SHARE, "85")
    assert not shared_under_mps(torch.device("cpu"))


def test_where_the_driver_cannot_be_asked_the_environment_tells(monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(devices.importlib, "import_module", absent)
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.delenv(MPS_SHARE, raising=False)
    assert not shared_under_mps(torch.device("cuda"))
    monkeypatch.setenv(MPS_SHARE, "85")
    assert shared_under_mps(torch.device("cuda"))
