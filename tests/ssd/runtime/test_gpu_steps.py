"""Steps as CUDA graphs: what eager steps give, nothing captured or allocated once serving, and long contexts."""

import random

import pytest
import torch

from ssd.config import EngineConfig
from ssd.layers.attention_torch import TorchAttention
from ssd.layers.build import Build
from ssd.layers.ops import make_ops
from ssd.layers.rope import Rope
from ssd.layers.rows import AllRows
from ssd.layers.shard import Shard
from ssd.models.config import ModelConfig
from ssd.models.loader import LoadedModel, load_model
from ssd.models.registry import build_model
from ssd.runtime.assembly import make_runner
from ssd.runtime.blocks import BlockTable
from ssd.runtime.graphs import CudaGraphs, device_allocations
from ssd.runtime.runner import BranchItem, ModelRunner, PlainDraw, RunRow
from ssd.runtime.step_sizes import Demand
from tests.ssd.engine import random_ids
from tests.toy import make_toy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"),
]
DEMAND = Demand(queries=5, sequences=4, branches=12, depth=4, candidates=17, chain=4)
DTYPES = [("float32", 2e-3), ("bfloat16", 1.0)]


class Made:
    """A runner with graphs, one that packs every step for itself, and tables on one pool."""

    def __init__(self, path, dtype, **engine):
        self.loaded = load_model(path, dtype=dtype, device="cuda", deterministic=engine.pop("deterministic", False))
        config = EngineConfig(**({"device": "cuda", "kv_tokens": 4096} | engine))
        self.runner, self.pool = make_runner(self.loaded, config, DEMAND)
        self.fast = self.runner.fast
        assert isinstance(self.fast.shared.executor, CudaGraphs)
        self.packed = ModelRunner(self.loaded.model, self.loaded.config, self.runner.kv, self.runner.backend)

    def table(self, length):
        table = BlockTable(self.pool)
        table.ensure(length)
        return table


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_graphs_give_what_packed_steps_give(tmp_path, family, dtype, tolerance):
    made, chance = Made(make_toy(tmp_path, family), dtype), random.Random(1)
    tables = [made.table(64) for _ in range(4)]
    for i, table in enumerate(tables):
        made.packed.run([RunRow(random_ids(40, seed=i), 0, table)])
    for trial in range(12):
        rows = [
            RunRow(random_ids(n, seed=trial), chance.randint(1, 40), table, n)
            for table in chance.sample(tables, chance.randint(1, 4))
            for n in [chance.choice([1, 1, 2, 5])]
        ]
        expected, logits = made.packed.run(rows), made.runner.run(rows)
        torch.testing.assert_close(logits, expected, rtol=0, atol=tolerance)
        own = [made.table(1).slots(0, 1) for _ in range(5)]
        items = [BranchItem(3 + i, 30, tables[i // 3], 30, slots) for i, slots in enumerate(own)]
        branched = made.runner.run_branches(items), made.packed.run_branches(items)
        torch.testing.assert_close(*branched, rtol=0, atol=tolerance)
    assert made.fast.shared.executor.captures >= made.fast.prepared


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_chains_draw_what_single_steps_draw(tmp_path, temperature):
    made = Made(make_toy(tmp_path, "qwen3"), "float32")
    prompt, drawn = random_ids(20, seed=1), []
    for steps in (4, 1):
        table = made.table(40)
        made.runner.run([RunRow(prompt[:17], 0, table)])
        row, draw, ids = RunRow(prompt[17:], 17, table), PlainDraw(7, 20, temperature), []
        for _ in range(4 // steps):
            ids += [one[0] for one in made.runner.draft([row], [draw], steps)]
            row = RunRow(ids[-1:], 19 + len(ids), table)
            draw = PlainDraw(7, 20 + len(ids), temperature)
        drawn.append(ids)
    assert drawn[0] == drawn[1]
    trunk, grown = made.table(32), []
    made.runner.run([RunRow(prompt, 0, trunk)])
    for steps in (4, 1):
        slots = [made.table(4).slots(0, 4) for _ in range(6)]
        items = [BranchItem(9 + i, 20, trunk, 20, own[:1], own[1:]) for i, own in enumerate(slots)]
        ids = []
        for done in range(0, 4, steps):
            ids += made.runner.grow_on(items, [PlainDraw(7, 21 + done, temperature)] * 6, steps)
            items = [
                BranchItem(token, 20 + len(ids), trunk, 20, own[: len(ids) + 1], own[len(ids) + 1 :])
                for token, own in zip(ids[-1], slots, strict=True)
            ]
        grown.append(ids)
    assert grown[0] == grown[1]


def test_serving_captures_and_allocates_nothing(tmp_path):
    made = Made(make_toy(tmp_path), "bfloat16")
    made.runner.prepare()
    executor, chance = made.fast.shared.executor, random.Random(2)
    tables = [made.table(64) for _ in range(4)]
    slots = [made.table(4).slots(0, 4) for _ in range(12)]

    def steps():
        rows = [
            RunRow(random_ids(n, seed=n), chance.randint(1, 40), table, n)
            for table in chance.sample(tables, chance.randint(1, 4))
            for n in [chance.choice([1, 1, 2, 5])]
        ]
        made.runner.step(rows, [PlainDraw(1, 9, 0.8)] * sum(row.logits for row in rows), chance.choice([1, 17]))
        made.runner.draft([RunRow([5, 6], 20, tables[0])], [PlainDraw(1, 22, 0.8)], 4)
        items = [BranchItem(9, 30, tables[1], 30, own[:1], own[1:]) for own in slots[: chance.randint(1, 12)]]
        made.runner.grow_on(items, [PlainDraw(1, 31, 0.8)] * len(items), 4)

    steps()
    torch.cuda.synchronize()
    before = executor.captures, made.fast.prepared, device_allocations(made.loaded.device)
    for _ in range(30):
        steps()
    assert (executor.captures, made.fast.prepared, device_allocations(made.loaded.device)) == before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_deterministic_graphs_give_the_same_bits_in_any_company(tmp_path, dtype):
    made = Made(make_toy(tmp_path, "qwen3"), dtype, deterministic=True)
    ids, whole = random_ids(60, seed=3), made.table(64)
    expected = made.runner.run([RunRow(ids, 0, whole, 60)])
    others = [made.table(64) for _ in range(3)]
    for cuts in ([0, 40, 41, 42, 47, 52, 60], [0, 55, 56, 57, 58, 59, 60], [0, 50, 55, 60]):
        table, parts = made.table(64), []
        for number, (first, stop) in enumerate(zip(cuts, cuts[1:], strict=False)):
            company = [RunRow([7] * (1 + i), 3, other, 0) for i, other in enumerate(others[: number % 4])]
            parts.append(made.runner.run([RunRow(ids[first:stop], first, table, stop - first), *company]))
        assert torch.equal(torch.cat(parts), expected)


def test_steps_of_many_rows_give_what_packed_steps_give():
    """Layers as large as a real model's, so that products are those that it takes, also above 64 tokens."""
    config = ModelConfig("llama", 4096, 5120, 25600, 2, 64, 8, 128, 2048, Rope(1e6), tied=False)
    gpu = torch.device("cuda")
    build = Build(torch.bfloat16, gpu, Shard(), AllRows(), make_ops("auto", gpu, torch.bfloat16))
    model = build_model(config, build)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.02) if parameter.dim() > 1 else parameter.fill_(1.0)
    loaded = LoadedModel(model.eval(), config, torch.bfloat16, gpu, Shard())
    runner, pool = make_runner(loaded, EngineConfig(device="cuda", kv_tokens=8192), Demand(17, 64), prepare=True)
    packed = ModelRunner(loaded.model, config, runner.kv, runner.backend)
    chance = random.Random(3)
    tables = [BlockTable(pool) for _ in range(48)]
    for i, table in enumerate(tables):
        table.ensure(80)
        packed.run([RunRow(random_ids(48, seed=i), 0, table)])
    for counts in [[1] * 16, [15, 2] * 8, [1, *[15, 2] * 7, 2], [7] * 16, [1] * 48, [5] * 48, [17] * 4, [12] * 5]:
        rows = [
            RunRow(random_ids(n, seed=n), chance.randint(1, 48), table)
            for n, table in zip(counts, chance.sample(tables, len(counts)), strict=True)
        ]
        expected, logits = packed.run(rows), runner.run(rows)
        assert expected.isfinite().all(), counts
        assert logits.isfinite().all(), counts
        assert (logits - expected).norm() < 0.02 * expected.norm(), counts


def test_a_context_of_32k_tokens(tmp_path):
    path = make_toy(tmp_path, "llama", layers=1, max_position=33_000)
    made = Made(path, "float32", kv_tokens=33_600, token_budget=2048)
    ids, table = random_ids(32_768, seed=4), made.table(32_800)
    for first in range(0, 32_760, 2040):
        made.runner.run([RunRow(ids[first : min(first + 2040, 32_760)], first, table)])
    logits = made.runner.run([RunRow(ids[32_760:32_765], 32_760, table, 5)])
    single = made.runner.run([RunRow(ids[32_765:32_766], 32_765, table)])
    reference = ModelRunner(made.loaded.model, made.loaded.config, made.runner.kv, TorchAttention())
    torch.testing.assert_close(logits, reference.run([RunRow(ids[32_760:32_765], 32_760, table, 5)]), rtol=0, atol=1e-2)
    torch.testing.assert_close(single, reference.run([RunRow(ids[32_765:32_766], 32_765, table)]), rtol=0, atol=1e-2)
    short = [made.table(64) for _ in range(3)]
    mixed = [RunRow(ids[32_766:32_768], 32_766, table, 2), *(RunRow([5], 9, one) for one in short)]
    assert made.runner.run(mixed).isfinite().all()


def test_kv_room_is_what_the_share_leaves(tmp_path):
    loaded = load_model(make_toy(tmp_path), device="cuda")
    engine = EngineConfig(device="cuda", memory_fraction=0.2, max_sequences=1 << 30)
    runner, pool = make_runner(loaded, engine, DEMAND)
    total = torch.cuda.get_device_properties(0).total_memory
    assert 0.1 * total < torch.cuda.memory_reserved() < 0.2 * total
    assert pool.blocks == runner.kv.blocks
