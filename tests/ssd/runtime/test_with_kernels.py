"""Static steps with the project's own kernels, in Triton's interpreter where tests/ssd/kernels has set it up."""

import sys

import pytest
import torch

from ssd.models.loader import load_model
from ssd.runtime.runner import BranchItem, PlainDraw, RunRow
from tests.ssd.engine import Engine, random_ids
from tests.ssd.runtime.standin import fast_engine
from tests.toy import make_toy


def kernels():
    """The modules, if the interpreter runs them."""
    loaded = sys.modules.get("ssd.kernels.attention")
    interpreted = loaded is not None and type(loaded.attend_tiles).__name__ == "InterpretedFunction"
    if not interpreted:
        pytest.skip("Triton's interpreter is not set up in this process")
    return sys.modules["ssd.layers.attention_triton"], sys.modules["ssd.kernels.ops"]


@pytest.mark.parametrize(
    ("family", "dtype", "layers", "tolerance"), [("qwen3", "float32", 1, 1e-5), ("qwen2", "bfloat16", 2, 4e-2)]
)
def test_steps_equal_the_reference(tmp_path, monkeypatch, family, dtype, layers, tolerance):
    attention, own = kernels()
    path = make_toy(tmp_path, family, layers=layers)
    monkeypatch.setattr("ssd.models.loader.make_ops", lambda *_, **__: own.TritonOps("cpu"))
    fast = fast_engine(load_model(path, dtype=dtype), backend=attention.TritonAttention())
    monkeypatch.undo()
    plain = Engine.load(path, dtype="float32", block_size=8)
    model = fast.loaded.model
    assert model.model.layers[0].self_attn.writer is not None
    # In 16 bits norms and sums are part of the products.
    assert model.fused.fuses(torch.zeros(3, 64, dtype=fast.loaded.dtype)) is (dtype == "bfloat16")
    results = []
    for engine in (plain, fast):
        rows = []
        for seed, (before, length) in enumerate([(5, 3), (20, 1)]):
            ids, table = random_ids(before + length, seed=seed), engine.table(32)
            engine.runner.run([RunRow(ids[:before], 0, table)])
            rows.append(RunRow(ids[before:], before, table, length))
        own_slots = [engine.table(2).slots(0, 2) for _ in range(3)]
        items = [BranchItem(3 + i, 8, rows[0].table, 8, slots[:1], slots[1:]) for i, slots in enumerate(own_slots)]
        results.append((engine.runner.run(rows), engine.runner.run_branches(items)))
        if engine is fast:
            first, _ = engine.runner.grow_on(items, [PlainDraw(1, 9, 0.0)] * 3, 2)
    for actual, expected in zip(results[1], results[0], strict=True):
        assert (actual.float() - expected).norm() < tolerance * expected.norm()
    assert first == results[1][1].float().argmax(-1).tolist()
