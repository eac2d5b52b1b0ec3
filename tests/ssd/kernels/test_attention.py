"""The attention kernels compute what the reference computes, over pages, lengths, heads and trees of branches."""

import random
from dataclasses import replace

import pytest
import torch

from ssd.kernels.cases import Heads, Setting, branch_case, sequence_case
from ssd.layers import attention_triton
from ssd.layers.attention_torch import TorchAttention
from ssd.layers.attention_triton import TritonAttention

TOLERANCE = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SMALL, ODD = Heads(4, 2, 16), Heads(9, 3, 24)


def assert_same_bits(result, expected):
    """On a GPU. The interpreter's products are numpy's, which round by a row's place in the tile."""
    if result.is_cuda:
        assert torch.equal(result, expected)
    torch.testing.assert_close(result, expected, rtol=0, atol=TOLERANCE[result.dtype] / 2)


def assert_equals_reference(case, **changes):
    """Both modes against float64 torch, the cache included."""
    expected, keys, values = case.as_dtype(torch.float64).run(TorchAttention())
    for deterministic in (False, True):
        result, cache_k, cache_v = case.run(TritonAttention(deterministic=deterministic), **changes)
        assert result.dtype == case.q.dtype
        error = (result.double() - expected).abs().max().item()
        assert error < TOLERANCE[case.q.dtype], f"deterministic={deterministic}: {error}"
        assert torch.equal(cache_k.double(), keys) and torch.equal(cache_v.double(), values)


@pytest.mark.parametrize(("heads", "block_size"), [(SMALL, 1), (ODD, 3), (Heads(8, 1, 16), 16)])
def test_rows_of_any_length_equal_the_reference(device, heads, block_size):
    setting = Setting(heads, block_size, torch.float32, device, spare_width=2)
    rows = [(1, 1), (3, 3), (2, 17), (5, 64), (1, 65), (4, 130)]
    assert_equals_reference(sequence_case(setting, rows))


@pytest.mark.parametrize("seed", range(3))
def test_random_steps_equal_the_reference(device, seed):
    chance = random.Random(seed)
    kv = chance.choice([1, 2, 3])
    heads = Heads(kv * chance.choice([1, 2, 3, 5]), kv, chance.choice([16, 32, 40]))
    dtype = [torch.float32, torch.float16, torch.bfloat16][seed]
    setting = Setting(heads, chance.choice([1, 4, 7, 16, 32]), dtype, device, seed)
    rows = []
    for _ in range(chance.randint(1, 5)):
        queries = chance.choice([1, 1, 2, 7])
        rows.append((queries, queries + chance.choice([0, 1, 15, 63, 64, 200])))
    unwritten = chance.sample(range(sum(queries for queries, _ in rows)), 1)
    assert_equals_reference(sequence_case(setting, rows, unwritten))


def test_prefill_beside_decoding_equals_the_reference(device):
    setting = Setting(Heads(4, 1, 16), 8, torch.float32, device)
    case = sequence_case(setting, [(70, 90), (1, 70), (3, 3), (40, 40)])
    assert_equals_reference(case)
    assert_equals_reference(case, most_queries=70)


def test_keys_are_split_where_rows_are_few_and_tables_wide(device):
    setting = Setting(SMALL, 16, torch.float32, device)
    case = sequence_case(setting, [(2, 700), (1, 5)])
    backend = TritonAttention()
    (job,) = backend.jobs(case.q, 2, case.ctx)
    assert job.splits > 1
    assert_equals_reference(case)


def test_padding_rows_see_nothing_and_write_nowhere(device):
    setting = Setting(SMALL, 4, torch.float32, device)
    case = sequence_case(setting, [(2, 9), (1, 30), (1, 0), (2, 0)])
    real = sequence_case(setting, [(2, 9), (1, 30)])
    for wide in (0, 100):
        for deterministic in (False, True):
            padded = sequence_case(replace(setting, spare_width=wide), [(2, 9), (1, 30), (1, 0), (2, 0)])
            result, cache_k, _ = padded.run(TritonAttention(deterministic=deterministic), most_queries=2)
            assert torch.equal(result[3:], torch.zeros_like(result[3:]))
            expected, keys, _ = replace(
                real, q=case.q[:3], k=case.k[:3], v=case.v[:3], cache_k=case.cache_k, cache_v=case.cache_v
            ).run(TorchAttention())
            torch.testing.assert_close(result[:3], expected, rtol=0, atol=2e-6)
            assert torch.equal(cache_k, keys)


@pytest.mark.parametrize("spare_width", [0, 200])
def test_tokens_of_no_row_get_zeros(device, spare_width):
    setting = Setting(SMALL, 4, torch.float32, device, spare_width=spare_width)
    case = sequence_case(setting, [(1, 9), (1, 30), (1, 12)])
    starts = torch.tensor([0, 1, 2, 2], device=device)
    slots = case.ctx.slots.clone()
    slots[2] = -1
    result, _, _ = case.run(TritonAttention(), query_starts=starts, slots=slots, query_lens=[1, 1, 0], most_queries=1)
    assert torch.equal(result[2], torch.zeros_like(result[2]))
    assert result[:2].abs().min() > 0


TREES = {
    "one trunk": [[(20, 1), (21, 3), (22, 2), (20, 2)]],
    "ragged trunks": [[(20, 1), (22, 5)], [(5, 1)], [(130, 4)] * 7, [(64, 2), (65, 1), (63, 3)]],
    "no prefix": [[(0, 1), (0, 3)], [(1, 1)]],
    "an empty trunk between": [[(9, 2)], [], [(17, 1), (16, 2)]],
    "padding branches": [[(20, 1), (33, 2)], [(12, 2), (0, 0), (0, 0)]],
}


@pytest.mark.parametrize(("name", "heads"), [*((name, SMALL) for name in TREES), ("ragged trunks", ODD)])
def test_branches_equal_the_reference(device, name, heads):
    trunks = TREES[name]
    setting = Setting(heads, 4, torch.float32, device)
    if name != "padding branches":
        assert_equals_reference(branch_case(setting, trunks))
        return
    case = branch_case(setting, trunks)
    result, _, _ = case.run(TritonAttention())
    assert torch.equal(result[3:], torch.zeros_like(result[3:]))
    assert result[:3].isfinite().all() and result[:3].abs().amax(dim=-1).min() > 0


@pytest.mark.parametrize("seed", range(2))
def test_random_trees_equal_the_reference(device, seed):
    chance = random.Random(seed)
    kv = chance.choice([1, 2])
    heads = Heads(kv * chance.choice([1, 2, 4]), kv, 16)
    setting = Setting(heads, chance.choice([1, 5, 16]), torch.float32, device, seed)
    trunks = []
    for _ in range(chance.randint(1, 3)):
        length = chance.choice([3, 40, 150])
        trunks.append(
            [(max(0, length - chance.randint(0, 4)), chance.randint(1, 6)) for _ in range(chance.randint(1, 12))]
        )
    assert_equals_reference(branch_case(setting, trunks))


def test_deterministic_bits_depend_on_nothing_but_a_tokens_own_keys(device):
    setting = Setting(Heads(4, 2, 16), 4, torch.float16, device)
    backend = TritonAttention(deterministic=True)
    case = sequence_case(setting, [(40, 300), (3, 20)])
    whole, _, _ = case.run(backend)
    cache_k, cache_v = case.cache_k.clone(), case.cache_v.clone()
    backend.write(case.k, case.v, cache_k, cache_v, case.ctx)
    for token in (0, 1, 17, 39):
        keys = 300 - 40 + token + 1
        alone = replace(
            case.ctx,
            positions=case.ctx.positions[token : token + 1],
            query_starts=torch.tensor([0, 1], device=device),
            context_lens=torch.tensor([keys], device=device),
            block_tables=case.ctx.block_tables[:1, : -(-keys // 4)],
            query_lens=[1],
            key_lens=[keys],
        )
        assert_same_bits(backend.read(case.q[token : token + 1], cache_k, cache_v, alone)[0], whole[token])


def test_parts_that_would_take_too_much_memory_are_made_in_turns(device, monkeypatch):
    setting = Setting(SMALL, 4, torch.float32, device)
    case = sequence_case(setting, [(5, 300), (2, 300), (1, 2)])
    backend = TritonAttention(deterministic=True)
    at_once, _, _ = case.run(backend)
    monkeypatch.setattr(attention_triton, "_PARTS_BYTES", 4000)
    in_turns, _, _ = case.run(backend)
    assert_same_bits(in_turns, at_once)


def test_float64_is_computed_by_the_reference(device):
    setting = Setting(SMALL, 4, torch.float64, device)
    case = sequence_case(setting, [(2, 9)])
    assert torch.equal(case.run(TritonAttention())[0], case.run(TorchAttention())[0])
