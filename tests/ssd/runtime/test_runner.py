"""However tokens are cut into rows, steps, branches and shared prefixes, the model computes the same."""

import random

import pytest
import torch

from ssd.layers.attention_torch import TorchAttention
from ssd.runtime.blocks import BlockTable
from ssd.runtime.kv_cache import block_bytes
from ssd.runtime.runner import BranchItem, ModelRunner, RunRow
from tests.ssd.engine import Engine, random_ids
from tests.toy import LLAMA3_ROPE, VOCAB, make_toy

FAMILIES = ["llama", "qwen2", "qwen3"]


def toy_engine(path, family="llama", **options):
    rope = LLAMA3_ROPE if family == "llama" else None
    return Engine.load(make_toy(path, family, rope=rope), **{"dtype": "float64", "block_size": 4, **options})


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("family", FAMILIES)
def test_verifying_many_tokens_equals_decoding_them_one_by_one(tmp_path, family):
    engine = toy_engine(tmp_path, family)
    prompt, block = random_ids(21, seed=1), random_ids(9, seed=2)
    one, many = engine.table(30), engine.table(30)
    engine.runner.run([RunRow(prompt, 0, one)])
    engine.runner.run([RunRow(prompt, 0, many)])
    singly = torch.cat([engine.runner.run([RunRow([token], 21 + i, one)]) for i, token in enumerate(block)])
    close(engine.runner.run([RunRow(block, 21, many, len(block))]), singly)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_all_kinds_in_one_step_do_not_disturb_each_other(tmp_path, family):
    engine = toy_engine(tmp_path, family)
    chance = random.Random(family)
    sequences = [random_ids(length, seed=length) for length in (3, 9, 33, 64, 65, 120)]
    expected = [engine.logits(ids) for ids in sequences]
    tables, done = [engine.table(len(ids)) for ids in sequences], [0] * len(sequences)
    parts = [[] for _ in sequences]
    while live := [i for i, ids in enumerate(sequences) if done[i] < len(ids)]:
        step = chance.sample(live, chance.randint(1, len(live)))
        sizes = [min(len(sequences[i]) - done[i], chance.choice([1, 1, 4, 9, 40])) for i in step]
        rows = [
            RunRow(sequences[i][done[i] : done[i] + n], done[i], tables[i], n) for i, n in zip(step, sizes, strict=True)
        ]
        for i, n, logits in zip(step, sizes, engine.runner.run(rows).split(sizes), strict=True):
            parts[i].append(logits)
            done[i] += n
    for part, whole in zip(parts, expected, strict=True):
        close(torch.cat(part), whole)


def test_rejected_tokens_are_overwritten(tmp_path):
    engine = toy_engine(tmp_path)
    ids = random_ids(20, seed=3)
    table = engine.table(30)
    engine.runner.run([RunRow(ids[:10], 0, table)])
    engine.runner.run([RunRow(random_ids(8, seed=4), 10, table, 8)])
    close(engine.runner.run([RunRow(ids[10:], 10, table, 10)]), engine.logits(ids)[10:])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_shared_prefix_gives_the_same_as_a_cold_run(tmp_path, family):
    engine = toy_engine(tmp_path, family)
    prefix, tails = random_ids(22, seed=5), [random_ids(7, seed=seed) for seed in (6, 7, 8)]
    first = engine.table(29)
    engine.runner.run([RunRow(prefix + tails[0], 0, first)])
    engine.pool.publish(first, prefix + tails[0], 29)
    tables = [BlockTable(engine.pool) for _ in tails]
    shared = [table.share(prefix + tail) for table, tail in zip(tables, tails, strict=True)]
    assert shared == [28, 20, 20]
    rows = []
    for table, tail, start in zip(tables, tails, shared, strict=True):
        table.ensure(29)
        rows.append(RunRow((prefix + tail)[start:], start, table, 1))
    expected = torch.cat([engine.logits(prefix + tail)[-1:] for tail in tails])
    close(engine.runner.run(rows), expected)
    with pytest.raises(ValueError, match="KV before 20 is shared"):
        engine.runner.run([RunRow([1], 19, tables[1])])
    engine.pool.check([first, *tables])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_branch_equals_the_same_tokens_as_an_ordinary_sequence(tmp_path, family, deterministic):
    engine = toy_engine(tmp_path, family, deterministic=deterministic)
    trunks = [random_ids(25, seed=9), random_ids(11, seed=10)]
    tables = [engine.table(len(ids)) for ids in trunks]
    for ids, table in zip(trunks, tables, strict=True):
        engine.runner.run([RunRow(ids, 0, table)])
    # (trunk, how much of it is seen, the branch's own tokens); lengths differ, and one branch sees no trunk at all
    branches = [
        (0, 25, random_ids(4, seed=11)),
        (0, 25, random_ids(4, seed=12)),
        (0, 22, random_ids(4, seed=13)),
        (1, 11, random_ids(3, seed=14)),
        (1, 0, random_ids(2, seed=15)),
        (0, 20, random_ids(4, seed=16)),
    ]
    scratch = [engine.table(len(own)) for _, _, own in branches]
    for depth in range(4):
        going = [i for i, (_, _, own) in enumerate(branches) if depth < len(own)]
        items, expected = [], []
        for i in going:
            trunk, prefix_len, own = branches[i]
            slots = scratch[i].slots(0, depth + 1)
            items.append(BranchItem(own[depth], prefix_len + depth, tables[trunk], prefix_len, slots))
            expected.append(engine.logits(trunks[trunk][:prefix_len] + own[: depth + 1])[-1:])
        close(engine.runner.run_branches(items), torch.cat(expected))


def test_padding_rows_write_nowhere(tmp_path):
    engine = toy_engine(tmp_path)
    backend, loaded = TorchAttention(), engine.loaded
    ids = random_ids(3, seed=17)
    table = engine.table(3)
    engine.runner.run([RunRow(ids, 0, table)])
    before = [layer.clone() for layer in (*engine.kv.keys, *engine.kv.values)]
    ctx = engine.runner._context([3, 0], [-1, -1], [table.blocks, table.blocks], [0, 1, 2], [3, 1])
    ctx.backend = backend
    with torch.inference_mode():
        assert loaded.model(torch.tensor([1, 2]), ctx).isfinite().all()
    for was, layer in zip(before, (*engine.kv.keys, *engine.kv.values), strict=True):
        assert torch.equal(was, layer)


@pytest.mark.parametrize("bad", [-1, VOCAB, 10**9])
def test_ids_outside_the_vocabulary_never_reach_the_model(tmp_path, bad):
    engine = toy_engine(tmp_path)
    table = engine.table(8)
    with pytest.raises(ValueError, match=f"token id {bad} is outside the vocabulary of 320"):
        engine.runner.run([RunRow([1, bad], 0, table)])
    with pytest.raises(ValueError, match=f"token id {bad} is outside"):
        engine.runner.run_branches([BranchItem(bad, 0, table, 0, [0])])


def test_rows_that_cannot_be_run_are_refused(tmp_path):
    engine = toy_engine(tmp_path, blocks=400)
    table = engine.table(8)
    with pytest.raises(ValueError, match="outside a block table of 8 slots"):
        engine.runner.run([RunRow([1, 2], 7, table)])
    with pytest.raises(ValueError, match="position 1024 is past the model's limit of 1024"):
        engine.runner.run([RunRow([1], 1024, engine.table(1025))])
    with pytest.raises(ValueError, match="logits of 2 tokens asked for in a row of 1"):
        engine.runner.run([RunRow([1], 0, table, 2)])
    with pytest.raises(ValueError, match="at least one query token"):
        engine.runner.run([RunRow([], 0, table)])
    with pytest.raises(ValueError, match="at least one row"):
        engine.runner.run([])
    with pytest.raises(ValueError, match="position 3 has 2 trunk positions and 1 of its own"):
        engine.runner.run_branches([BranchItem(1, 3, table, 2, [0])])
    with pytest.raises(ValueError, match="outside a cache of 1600 slots"):
        engine.runner.run_branches([BranchItem(1, 2, table, 2, [-1])])


def test_rows_without_logits_give_none(tmp_path):
    engine = toy_engine(tmp_path)
    assert engine.runner.run([RunRow([1, 2, 3], 0, engine.table(3), 0)]).shape == (0, VOCAB)


def test_a_block_costs_what_its_tensors_take(tmp_path):
    engine = toy_engine(tmp_path, dtype="bfloat16", blocks=10)
    stored = sum(layer.nbytes for layer in (*engine.kv.keys, *engine.kv.values))
    assert stored == 10 * block_bytes(engine.loaded, 4)


def test_a_deterministic_model_refuses_another_kind_of_attention(tmp_path):
    engine = toy_engine(tmp_path, deterministic=True)
    with pytest.raises(ValueError, match="deterministic attention backend"):
        ModelRunner(engine.loaded.model, engine.loaded.config, engine.kv, TorchAttention())
