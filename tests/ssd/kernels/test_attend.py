"""The kernel of whole attention: which steps it takes, that it compiles where a compiler is, its results on a GPU."""

from dataclasses import replace

import pytest
import torch

from ssd.kernels.cases import Heads, Setting, branch_case, sequence_case
from ssd.layers.attention import Turning
from ssd.layers.attention_torch import TorchAttention
from ssd.layers.ops import TorchOps

pytest.importorskip("cuda.bindings", reason="cuda-bindings, which torch for CUDA brings, is not installed")

from ssd.kernels.attend import (
    MOST_KEYS,
    SOURCE,
    SPLITS,
    TALLS,
    AttendVariant,
    CudaAttention,
    make_attention,
    run,
    variant_for,
)
from ssd.kernels.cuda import CudaError, compile_source

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine")
SHARED_MEMORY_OF_A_BLOCK = 232_448
"""Bytes, compute capability 9."""
EPS = 1e-6
HEADS = [Heads(16, 8, 128), Heads(32, 8, 64), Heads(32, 8, 128), Heads(64, 8, 128), Heads(9, 3, 64), Heads(4, 4, 64)]
ROWS = {
    "one new": [(1, 1)],
    "one token": [(1, 1000)],
    "a few": [(7, 1031)],
    "some are short": [(1, 5), (3, 64), (2, 65), (1, 700)],
    "long": [(7, 2400), (1, 2345)],
    "many": [(1 + i % 7, 40 + 97 * i) for i in range(8)],
    "one is padding": [(2, 130), (1, 0)],
    "all new": [(7, 7), (4, 4)],
}


def variants():
    for heads in HEADS:
        for tall in TALLS:
            for splits in (8, 4, 2):
                if tall >= heads.query // heads.kv:
                    yield AttendVariant(heads.dim, heads.query, heads.kv, tall, heads.dim == 128, 16, splits)


@pytest.mark.parametrize("variant", list(variants()), ids=str)
def test_a_blocks_memory_holds_what_a_variant_needs(variant):
    assert variant.shared_bytes <= SHARED_MEMORY_OF_A_BLOCK


@pytest.mark.parametrize("variant", list(variants())[::7], ids=str)
def test_the_source_compiles(variant):
    try:
        image = compile_source(SOURCE, variant.defines(), "sm_90")
    except CudaError:
        raise
    except RuntimeError as error:
        pytest.skip(f"no compiler: {error}")
    assert image.startswith(b"\x7fELF")


def test_a_block_is_never_given_less_memory_than_it_needs():
    defines = next(variants()).defines()
    try:
        with pytest.raises(CudaError, match="a block is given what it needs"):
            compile_source(SOURCE, defines | {"SHARED_BYTES": defines["SHARED_BYTES"] - 512}, "sm_90")
    except RuntimeError as error:
        pytest.skip(f"no compiler: {error}")


def packed(case):
    """q, k and v of a case as the product in front gives them: [T, (Hq + 2 Hkv) d]."""
    return torch.cat([case.q, case.k, case.v], dim=1).flatten(1)


def turning_of(case, heads, normed):
    chance = torch.Generator(case.q.device).manual_seed(3)
    angles = torch.rand(len(case.q), heads.dim // 2, generator=chance, device=case.q.device) * 6
    weights = [1 + 0.2 * torch.randn(heads.dim, generator=chance, device=case.q.device) for _ in range(2)]
    q_norm, k_norm = (one.to(case.q.dtype) for one in weights) if normed else (None, None)
    return Turning(torch.cat([angles.cos(), angles.sin()], dim=1), heads.query, heads.kv, q_norm, k_norm, EPS)


def small(heads, dtype=torch.bfloat16, device="cpu"):
    return Setting(heads, 16, dtype, torch.device(device), spare_width=3)


def variant_of(case, heads, **changes):
    return variant_for(packed(case), turning_of(case, heads, False), replace(case.ctx, **changes))


def test_the_variant_follows_from_the_step():
    heads = HEADS[0]
    case = sequence_case(small(heads), [(7, 20), (1, 30)])
    assert variant_of(case, heads).tall == 16
    assert variant_of(case, heads, most_queries=9).tall == 32
    assert variant_of(case, heads, most_queries=65) is None
    assert variant_of(branch_case(small(heads), [[(100, 1)]]), heads) is None
    assert variant_of(sequence_case(small(heads, torch.float32), [(1, 3)]), heads) is None
    assert variant_of(sequence_case(small(Heads(4, 4, 80)), [(1, 3)]), Heads(4, 4, 80)) is None


def test_many_rows_and_many_keys_go_to_others():
    whole = CudaAttention(torch.device("cuda"))
    for rows in ([(1, MOST_KEYS)], [(1, 3), (1, 3)]):
        case = sequence_case(small(HEADS[0]), rows)
        turning = turning_of(case, HEADS[0], False)
        assert whole.turn_and_attend(packed(case), turning, case.cache_k, case.cache_v, case.ctx) is None


def attended(qkv, turning, cache_k, cache_v, ctx):
    """What the kernel gives, also where it would not be chosen."""
    whole = make_attention(torch.device("cuda"))
    if whole is None:
        pytest.skip("this device has no kernel of whole attention")
    rows = len(ctx.context_lens)
    variant = variant_for(qkv, turning, ctx, SPLITS if rows == 1 else 4 if rows <= 3 else 2)
    return run(whole.kernel(variant), variant, qkv, turning, cache_k, cache_v, ctx)


def assert_equals_the_separate_kernels(case, heads, normed, **changes):
    """Turned and rounded as separate kernels do it, then attention in float64."""
    qkv, turning, ctx = packed(case), turning_of(case, heads, normed), replace(case.ctx, **changes)
    cache_k, cache_v = case.cache_k.clone(), case.cache_v.clone()
    result = attended(qkv, turning, cache_k, cache_v, ctx)
    how = (turning.cos_sin, heads.query, heads.kv, turning.q_norm, turning.k_norm, EPS)
    q, k, v = TorchOps().turn(qkv, *how).split([heads.query, heads.kv, heads.kv], dim=1)
    keys, values = case.cache_k.double(), case.cache_v.double()
    seen = [i for i, length in enumerate(ctx.key_lens) if length > 0]
    reference = without_padding(ctx, seen)
    tokens = int(reference.query_starts[-1])
    expected = TorchAttention().attend(
        q[:tokens].double(), k[:tokens].double(), v[:tokens].double(), keys, values, reference
    )
    assert result.isfinite().all()
    assert (result[:tokens].double() - expected.flatten(1)).abs().max() < 1e-2 * expected.abs().max()
    assert not result[tokens:].any()
    assert torch.equal(cache_v.double(), values)
    # A product and a sum may be rounded together or apart.
    assert ((cache_k.double() - keys).abs() <= 2**-7 * keys.abs() + 1e-3).all()


def without_padding(ctx, rows):
    """The context without its last rows."""
    count = len(rows)
    assert rows == list(range(count))
    tokens = int(ctx.query_starts[count])
    return replace(
        ctx,
        slots=ctx.slots[:tokens],
        positions=ctx.positions[:tokens],
        query_starts=ctx.query_starts[: count + 1],
        context_lens=ctx.context_lens[:count],
        block_tables=ctx.block_tables[:count],
        query_lens=ctx.query_lens[:count],
        key_lens=ctx.key_lens[:count],
    )


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_rows_equal_the_separate_kernels(heads, rows, normed):
    case = sequence_case(small(heads, device="cuda"), rows)
    assert_equals_the_separate_kernels(case, heads, normed)
    assert_equals_the_separate_kernels(case, heads, normed, most_queries=8)


@pytest.mark.gpu
@needs_cuda
def test_every_run_gives_the_same_bits():
    heads = HEADS[2]
    case = sequence_case(small(heads, device="cuda"), [(7, 2000)])
    turning = turning_of(case, heads, True)
    runs = [attended(packed(case), turning, case.cache_k.clone(), case.cache_v.clone(), case.ctx) for _ in range(20)]
    assert all(torch.equal(one, runs[0]) for one in runs)
