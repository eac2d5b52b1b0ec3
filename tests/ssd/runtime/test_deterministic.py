"""In the deterministic mode a token's logits are the same bits in any company, bfloat16 included."""

import random

import pytest
import torch

from ssd.runtime.blocks import BlockTable
from ssd.runtime.runner import BranchItem, RunRow
from tests.ssd.engine import Engine, random_ids
from tests.toy import make_toy

LENGTHS = (5, 16, 17, 40, 61)


def computed_in_random_company(engine, sequences, chance):
    """Logits of every token of every sequence, run in random chunks beside random others."""
    tables, done = [engine.table(len(ids)) for ids in sequences], [0] * len(sequences)
    parts = [[] for _ in sequences]
    while live := [i for i, ids in enumerate(sequences) if done[i] < len(ids)]:
        step = chance.sample(live, chance.randint(1, len(live)))
        sizes = [min(len(sequences[i]) - done[i], chance.choice([1, 1, 2, 5, 9, 30])) for i in step]
        rows = [
            RunRow(sequences[i][done[i] : done[i] + n], done[i], tables[i], n) for i, n in zip(step, sizes, strict=True)
        ]
        for i, n, logits in zip(step, sizes, engine.runner.run(rows).split(sizes), strict=True):
            parts[i].append(logits)
            done[i] += n
    for table in tables:
        table.release()
    return [torch.cat(part) for part in parts]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_logits_are_the_same_bits_in_any_company(tmp_path, family, dtype):
    engine = Engine.load(make_toy(tmp_path, family), dtype=dtype, deterministic=True, block_size=8)
    sequences = [random_ids(length, seed=length) for length in LENGTHS]
    alone = [engine.logits(ids) for ids in sequences]
    for trial in range(6):
        for company, reference in zip(
            computed_in_random_company(engine, sequences, random.Random(trial)), alone, strict=True
        ):
            assert torch.equal(company, reference)


def test_a_shared_prefix_and_a_branch_change_no_bit_either(tmp_path):
    engine = Engine.load(make_toy(tmp_path), dtype="bfloat16", deterministic=True, block_size=8)
    ids = random_ids(30, seed=1)
    expected = engine.logits(ids)
    first = engine.table(30)
    engine.runner.run([RunRow(ids, 0, first)])
    engine.pool.publish(first, ids, 30)
    second = BlockTable(engine.pool)
    assert second.share(ids) == 24
    second.ensure(30)
    assert torch.equal(engine.runner.run([RunRow(ids[24:], 24, second, 6)]), expected[24:])
    own = engine.table(1).slots(0, 1)
    assert torch.equal(engine.runner.run_branches([BranchItem(ids[29], 29, second, 29, own)]), expected[29:])
