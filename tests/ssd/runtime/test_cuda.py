"""The reference backend computes on a GPU what it computes on the CPU."""

import pytest
import torch

from ssd.runtime.runner import BranchItem, RunRow
from tests.ssd.engine import Engine, random_ids
from tests.toy import make_toy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"),
]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 2e-2), ("bfloat16", 1.0)])
def test_logits_equal_those_of_the_cpu(tmp_path, family, dtype, tolerance):
    path = make_toy(tmp_path, family)
    cpu, gpu = (Engine.load(path, dtype=dtype, device=device) for device in ("cpu", "cuda"))
    ids = random_ids(100, seed=1)
    expected = cpu.logits(ids)
    logits = gpu.logits(ids)
    assert logits.is_cuda
    torch.testing.assert_close(logits.cpu(), expected, rtol=0, atol=tolerance)
    table, own = gpu.table(40), gpu.table(1)
    gpu.runner.run([RunRow(ids[:30], 0, table), RunRow(ids[:5], 0, gpu.table(5))])
    branch = gpu.runner.run_branches([BranchItem(ids[30], 30, table, 30, own.slots(0, 1))])
    torch.testing.assert_close(branch[0].cpu(), expected[30], rtol=0, atol=tolerance)


def test_deterministic_bits_do_not_depend_on_chunks_on_a_gpu_either(tmp_path):
    engine = Engine.load(make_toy(tmp_path), dtype="bfloat16", device="cuda", deterministic=True)
    ids = random_ids(100, seed=2)
    table = engine.table(100)
    cuts = [0, 50, 51, 60, 100]
    rows = [RunRow(ids[i:j], i, table, j - i) for i, j in zip(cuts, cuts[1:], strict=False)]
    assert torch.equal(torch.cat([engine.runner.run([row]) for row in rows]), engine.logits(ids))
