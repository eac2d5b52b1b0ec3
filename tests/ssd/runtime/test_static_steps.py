"""Steps that keep their tensors in place give what steps packed for themselves give, over ragged batches and chains."""

import random

import pytest
import torch

from ssd.models.loader import load_model
from ssd.runtime.draws import PlainDraw
from ssd.runtime.runner import BranchItem, RunRow
from ssd.speculation.params import SamplingParams
from ssd.speculation.sampling import TokenHistory, draw, row_after, top_candidates
from tests.ssd.engine import Engine, random_ids
from tests.ssd.runtime.standin import fast_engine
from tests.toy import make_toy


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load_model(make_toy(tmp_path_factory.mktemp("toy"), "qwen3"), dtype="float64")


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)


def drawn_after(logits, place, position, temperature, seed, count=1):
    params = SamplingParams(temperature=temperature, seed=seed)
    row = row_after(params, TokenHistory([0] * position))
    if count == 1:
        return draw(logits[place][None], [row])[0].id
    return top_candidates(logits[place][None], [row], count)[0].tolist()


@pytest.mark.parametrize("seed", range(3))
def test_ragged_batches_equal_packed_ones(loaded, seed):
    chance = random.Random(seed)
    packed, static = Engine(loaded, block_size=8), fast_engine(loaded)
    sequences = [random_ids(chance.randint(12, 60), seed=i) for i in range(9)]
    tables = [(packed.table(len(ids)), static.table(len(ids))) for ids in sequences]
    done = [0] * len(sequences)
    while live := [i for i, ids in enumerate(sequences) if done[i] < len(ids)]:
        chosen = chance.sample(live, chance.randint(1, len(live)))
        sizes = [min(len(sequences[i]) - done[i], chance.choice([1, 1, 3, 7, 9])) for i in chosen]
        wanted = [chance.randint(0, n) for n in sizes]
        wanted[0] = max(1, wanted[0])
        results = []
        for which, engine in enumerate((packed, static)):
            rows = [
                RunRow(sequences[i][done[i] : done[i] + n], done[i], tables[i][which], m)
                for i, n, m in zip(chosen, sizes, wanted, strict=True)
            ]
            results.append(engine.runner.run(rows))
        close(results[1], results[0])
        for i, n in zip(chosen, sizes, strict=True):
            done[i] += n
    assert static.runner.fast.prepared > 1


def test_a_step_draws_what_the_sampler_draws(loaded):
    engine, plain = fast_engine(loaded), Engine(loaded)
    ids = [random_ids(7, seed=1), random_ids(5, seed=2)]
    rows = [RunRow(one, 0, engine.table(len(one)), 3) for one in ids]
    draws = [PlainDraw(i, 20 + i, [0.0, 0.8][i % 2]) for i in range(6)]
    draws[2] = None
    stepped = engine.runner.step(rows, draws)
    expected = torch.cat([plain.logits(one)[-3:] for one in ids])
    close(stepped.logits(range(6)), expected)
    for i in (0, 1, 3, 4, 5):
        assert stepped.ids[i] == [drawn_after(expected, i, 20 + i, [0.0, 0.8][i % 2], i)]
    ranked = engine.runner.step(rows, draws, 5)
    for i in (0, 1, 3, 4, 5):
        assert ranked.ids[i] == drawn_after(expected, i, 20 + i, [0.0, 0.8][i % 2], i, count=5)


def test_a_step_that_is_too_large_draws_the_same(loaded):
    engine, plain = fast_engine(loaded), Engine(loaded)
    ids = random_ids(200, seed=3)
    stepped = engine.runner.step([RunRow(ids, 0, engine.table(200), 1)], [PlainDraw(5, 200, 0.8)])
    assert engine.runner.fast.prepared == 0
    assert stepped.ids == [[drawn_after(plain.logits(ids), 199, 200, 0.8, 5)]]


def test_what_cannot_be_drawn_is_said_and_harms_nobody(loaded):
    engine = fast_engine(loaded)
    for keys in engine.kv.keys:
        keys[8 * 8 : 9 * 8] = torch.nan  # a block of the second table
    tables = [engine.table(60), engine.table(60)]
    rows = [RunRow([1], 3, tables[0]), RunRow([1], 3, tables[1])]
    bad = next(i for i, table in enumerate(tables) if 8 in table.blocks)
    if table_start := tables[bad].blocks.index(8) * 8:
        rows[bad] = RunRow([1], table_start + 2, tables[bad])
    ids = engine.runner.step(rows, [PlainDraw(1, 4, 0.8)] * 2).ids
    assert [one[0] < 0 for one in ids] == [i == bad for i in range(2)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("lengths", [(5,), (1,), (4, 1, 7), (1, 1, 1)])
def test_a_chain_drafts_what_single_steps_draft(loaded, lengths, temperature):
    engine, single = fast_engine(loaded), fast_engine(loaded)
    prompts = [random_ids(20, seed=i) for i in range(len(lengths))]
    count, drawn = 6, []
    for which in (engine, single):
        tables = [which.table(40) for _ in prompts]
        rows, draws = [], []
        for prompt, length, table in zip(prompts, lengths, tables, strict=True):
            if length < 20:
                which.runner.run([RunRow(prompt[:-length], 0, table)])
            rows.append(RunRow(prompt[-length:], 20 - length, table))
            draws.append(PlainDraw(9, 20, temperature))
        if which is engine:
            drawn.append(which.runner.draft(rows, draws, count))
            continue
        steps = []
        for _ in range(count):
            ids = [one[0] for one in which.runner.step(rows, draws).ids]
            rows = [RunRow([i], row.start + len(row.ids), row.table) for i, row in zip(ids, rows, strict=True)]
            draws = [PlainDraw(one.seed, one.position + 1, one.temperature) for one in draws]
            steps.append(ids)
        drawn.append(steps)
    assert drawn[0] == drawn[1]


def branches(engine, prompts, depth, held):
    """Items at the first depth, with held[i] slots for branch i."""
    trunks = []
    for prompt in prompts:
        table = engine.table(len(prompt))
        engine.runner.run([RunRow(prompt, 0, table)])
        trunks.append(table)
    items = []
    for i, slots in enumerate(held):
        own = engine.table(depth)
        trunk = i * len(prompts) // len(held)
        prefix = len(prompts[trunk]) - i % 3
        own_slots = own.slots(0, slots)
        items.append(BranchItem(7 + i, prefix, trunks[trunk], prefix, own_slots[:1], own_slots[1:]))
    return items


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_branches_grow_on_as_they_grow_one_by_one(loaded, temperature):
    prompts = [random_ids(19, seed=1), random_ids(30, seed=2)]
    held = [4, 4, 2, 4, 1, 4, 4]
    fast, single = fast_engine(loaded), Engine(loaded, block_size=8)
    items = branches(fast, prompts, 4, held)
    draws = [PlainDraw(3, item.position + 1, temperature) for item in items]
    grown = fast.runner.grow_on(items, draws, 4)
    items = branches(single, prompts, 4, held)
    alive = list(range(len(held)))
    for depth in range(4):
        alive = [i for i in alive if held[i] > depth]
        logits = single.runner.run_branches([items[i] for i in alive])
        for place, i in enumerate(alive):
            token = drawn_after(logits, place, items[i].position + 1, temperature, 3)
            assert grown[depth][i] == token
            own = [*items[i].suffix_slots, *items[i].later_slots[:1]]
            later = items[i].later_slots[1:]
            items[i] = BranchItem(token, items[i].position + 1, items[i].trunk, items[i].prefix_len, own, later)


def test_branches_of_trunks_in_any_order(loaded):
    engine, plain = fast_engine(loaded), Engine(loaded, block_size=8)
    prompts = [random_ids(11, seed=4), random_ids(17, seed=5)]
    order = [3, 0, 2, 1]
    results = []
    for which in (engine, plain):
        items = branches(which, prompts, 2, [2, 2, 2, 2])
        results.append(which.runner.run_branches([items[i] for i in order]))
    close(*results)


def test_nothing_new_is_prepared_for_what_was_demanded(loaded):
    engine = fast_engine(loaded, sequences=6, queries=4, branches=10)
    fast = engine.runner.fast
    fast.prepare(10_000)
    ready, chance = fast.prepared, random.Random(1)
    tables = [engine.table(64) for _ in range(6)]
    for _ in range(60):
        rows = [
            RunRow(random_ids(chance.choice([1, 1, 2, 4]), seed=i), chance.randint(0, 30), table)
            for i, table in enumerate(chance.sample(tables, chance.randint(1, 6)))
        ]
        engine.runner.run(rows)
        items = branches(engine, [], 1, [])
        own = tables[0].slots(60, 61)
        items = [BranchItem(1, 9, tables[1], 9, own)] * chance.randint(1, 10)
        engine.runner.run_branches(items)
    assert fast.prepared == ready
