"""On a GPU: the kernels as compiled, at real sizes, in CUDA graphs, and launched early."""

from dataclasses import replace

import pytest
import torch

from ssd.kernels.cases import Heads, Setting, branch_case, sequence_case
from ssd.kernels.draw import draw_ids
from ssd.kernels.ops import TritonOps
from ssd.layers.attention_torch import TorchAttention
from ssd.layers.attention_triton import TritonAttention
from ssd.layers.ops import TorchOps
from ssd.speculation.philox import seed_pattern
from ssd.speculation.sampling import DrawRow, SamplingParams, TokenHistory, top_candidates

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"),
]

GPU = torch.device("cuda")
LIMITS = {torch.float32: 5e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
DTYPES = list(LIMITS)
ALL_HEADS = [Heads(64, 8, 128), Heads(16, 8, 128), Heads(32, 8, 64), Heads(9, 3, 64), Heads(8, 2, 256), Heads(4, 4, 80)]
LINEARS = [
    (10240, 5120),
    (5120, 8192),
    (5120, 25600),
    (4096, 1024),
    (1024, 3072),
    (151936, 1024),
    (960, 576),
    (576, 1536),
]


def assert_near(result, expected):
    """Relative to the largest number of a float64 reference."""
    assert result.isfinite().all()
    error = ((result.double() - expected).abs().max() / expected.abs().max()).item()
    assert error < LIMITS[result.dtype], error


def assert_equals_reference(case, **changes):
    expected, keys, values = case.as_dtype(torch.float64).run(TorchAttention())
    for deterministic in (False, True):
        result, cache_k, cache_v = case.run(TritonAttention(deterministic=deterministic), **changes)
        assert_near(result, expected)
        assert torch.equal(cache_k.double(), keys) and torch.equal(cache_v.double(), values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", ALL_HEADS, ids=str)
def test_long_and_short_rows_equal_the_reference(heads, dtype):
    setting = Setting(heads, 16, dtype, GPU, spare_width=5)
    assert_equals_reference(sequence_case(setting, [(1, 1), (1, 1000), (1, 32768), (1, 4097)]), most_queries=1)
    assert_equals_reference(sequence_case(setting, [(7, 7), (7, 2048), (7, 32768), (3, 90)]), most_queries=7)
    assert_equals_reference(sequence_case(setting, [(512, 2000), (1, 3000), (200, 200)]))


@pytest.mark.parametrize("block_size", [1, 7, 64, 256])
def test_any_block_size_equals_the_reference(block_size):
    setting = Setting(Heads(16, 8, 128), block_size, torch.bfloat16, GPU)
    assert_equals_reference(sequence_case(setting, [(1, 1000), (7, 513), (1, block_size)]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", ALL_HEADS, ids=str)
def test_trees_of_branches_equal_the_reference(heads, dtype):
    setting = Setting(heads, 16, dtype, GPU)
    trunks = [
        [(32768 - i % 7, 1 + i % 7) for i in range(24)],
        [(100, 2), (101, 7)],
        [(1, 1)],
        [(1024, 8)] * 40,
    ]
    assert_equals_reference(branch_case(setting, trunks))


def test_many_rows_of_mixed_lengths_equal_the_reference():
    setting = Setting(Heads(16, 8, 128), 16, torch.bfloat16, GPU)
    rows = [(1 + i % 7, 7 + (i * 977) % 12000) for i in range(32)]
    assert_equals_reference(sequence_case(setting, rows), most_queries=7)


@pytest.mark.parametrize("counts", [[1] * 16, [1, *[15, 2] * 7, 2], [7] * 16, [5] * 40], ids=str)
@pytest.mark.parametrize("heads", [Heads(64, 8, 128), Heads(9, 3, 64)], ids=str)
def test_a_batch_of_a_prepared_step_equals_the_reference(heads, counts):
    """Tables far wider than the rows are long, and memory that holds NaN wherever nothing was written."""
    setting = Setting(heads, 16, torch.bfloat16, GPU, spare_width=125)
    case = sequence_case(setting, [(count, 32 + count) for count in counts])
    poison = [torch.full((1 << exponent,), float("nan"), device=GPU) for exponent in range(10, 28)]
    del poison
    assert_equals_reference(case, most_queries=8 if max(counts) <= 8 else 32)


@pytest.mark.parametrize("heads", [Heads(64, 8, 128), Heads(9, 3, 64)], ids=str)
def test_deterministic_bits_are_the_same_in_any_company(heads):
    backend = TritonAttention(deterministic=True)
    case = sequence_case(Setting(heads, 16, torch.bfloat16, GPU), [(300, 3000), (7, 70)])
    cache_k, cache_v = case.cache_k.clone(), case.cache_v.clone()
    whole = backend.attend(case.q, case.k, case.v, cache_k, cache_v, case.ctx)
    for first, count in ((0, 1), (17, 7), (150, 1), (293, 7), (299, 1)):
        keys = 3000 - 300 + first + count
        part = replace(
            case.ctx,
            positions=case.ctx.positions[first : first + count],
            query_starts=torch.tensor([0, count], device=GPU),
            context_lens=torch.tensor([keys], device=GPU),
            block_tables=case.ctx.block_tables[:1, : -(-keys // 16)],
            most_queries=count,
        )
        assert torch.equal(
            backend.read(case.q[first : first + count], cache_k, cache_v, part), whole[first : first + count]
        )


def captured(work):
    """A graph of `work`, warmed up, and what it returns."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


@pytest.mark.parametrize("early", [False, True])
def test_a_captured_step_serves_other_lengths(early):
    backend = TritonAttention(early=early)
    setting = Setting(Heads(16, 8, 128), 16, torch.bfloat16, GPU)
    case = sequence_case(setting, [(2, 9000), (2, 40), (2, 500)])
    ctx = replace(case.ctx, most_queries=2, query_lens=(), key_lens=())
    graph, result = captured(lambda: backend.attend(case.q, case.k, case.v, case.cache_k, case.cache_v, ctx))
    for lengths in ([9000, 40, 500], [2, 40, 17], [4097, 2, 500]):
        slots = [
            int(ctx.block_tables[row, p // 16]) * 16 + p % 16
            for row, length in enumerate(lengths)
            for p in (length - 2, length - 1)
        ]
        ctx.slots.copy_(torch.tensor(slots))
        ctx.context_lens.copy_(torch.tensor(lengths))
        graph.replay()
        expected, _, _ = (
            replace(case, ctx=replace(ctx, query_lens=[2, 2, 2], key_lens=lengths))
            .as_dtype(torch.float64)
            .run(TorchAttention(), most_queries=None)
        )
        assert_near(result, expected)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), LINEARS)
@pytest.mark.parametrize("rows", [1, 8, 24, 64])
def test_products_equal_torch_and_themselves(outputs, inputs, rows, early):
    ops = TritonOps(GPU, early=early)
    weight = torch.randn(outputs, inputs, device=GPU).bfloat16() / inputs**0.5
    x = torch.randn(rows, inputs, device=GPU).bfloat16()
    assert ops.skinny(x, weight)
    results = [ops.linear(x, weight, None) for _ in range(20)]
    assert_near(results[0], x.double() @ weight.double().T)
    assert all(torch.equal(result, results[0]) for result in results)
    assert not ops.arrivals.any()


@pytest.mark.parametrize("early", [False, True])
def test_a_captured_chain_of_a_layers_kernels_equals_the_reference(early):
    own, reference = TritonOps(GPU, early=early), TorchOps()
    hidden, heads, kv_heads, dim, inner = 1024, 16, 8, 128, 3072

    def make(*shape):
        return torch.randn(*shape, device=GPU).bfloat16() / shape[-1] ** 0.5

    x, residual = make(24, hidden) * 32, make(24, hidden) * 32
    norm, head_norm = torch.ones(hidden, device=GPU).bfloat16(), torch.ones(dim, device=GPU).bfloat16()
    qkv, gate_up, down = make((heads + 2 * kv_heads) * dim, hidden), make(2 * inner, hidden), make(hidden, inner)
    cos_sin = torch.randn(24, dim, device=GPU)

    def layer(ops):
        normed, total = ops.add_rms_norm(x, residual, norm, 1e-6)
        turned = ops.turn(ops.linear(normed, qkv, None), cos_sin, heads, kv_heads, head_norm, head_norm, 1e-6)
        inside = ops.silu_mul(ops.linear(normed, gate_up, None))
        return ops.rms_norm(ops.linear(inside, down, None), norm, 1e-6), turned, total

    graph, results = captured(lambda: layer(own))
    for _ in range(5):
        graph.replay()
        for result, expected in zip(results, layer(reference), strict=True):
            assert ((result - expected).float().norm() / expected.float().norm()).item() < 1e-2


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("rows", [1, 8, 24, 64])
@pytest.mark.parametrize(("hidden", "inner"), [(1024, 3072), (5120, 25600), (576, 1536)])
def test_a_captured_chain_of_fused_products_equals_the_separate_ones(hidden, inner, rows, early):
    ops, reference = TritonOps(GPU, early=early), TorchOps()
    x, stream, norm = (
        torch.randn(*shape, device=GPU).bfloat16() for shape in ((rows, hidden), (rows, hidden), (hidden,))
    )
    out, gate_up, down = (
        torch.randn(*shape, device=GPU).bfloat16() / shape[1] ** 0.5
        for shape in ((hidden, hidden), (2 * inner, hidden), (hidden, inner))
    )

    def fused():
        middle = ops.linear_into(x, out, None, stream, norm)
        end = ops.linear_into(
            ops.scaled_linear(middle, gate_up, None, 1e-6, gated=True), down, None, middle.total, norm
        )
        return ops.scaled_linear(end, out, None, 1e-6), end.total

    def separate():
        normed, total = reference.add_rms_norm(reference.linear(x, out, None), stream, norm, 1e-6)
        inside = reference.silu_mul(reference.linear(normed, gate_up, None))
        normed, total = reference.add_rms_norm(reference.linear(inside, down, None), total, norm, 1e-6)
        return reference.linear(normed, out, None), total

    graph, results = captured(fused)
    expected = separate()
    for _ in range(5):
        graph.replay()
        for result, wanted in zip(results, expected, strict=True):
            assert ((result - wanted).float().norm() / wanted.float().norm()).item() < 1e-2
    assert not ops.arrivals.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("count", [1, 7, 32])
def test_draws_of_a_real_vocabulary_equal_the_reference(dtype, count):
    temperatures = [0.0, 0.7, 1.0, 1.3, 0.01, 30.0, 0.0, 0.8]
    logits = (torch.randn(8, 151936, generator=torch.Generator().manual_seed(count)) * 3).to(dtype).to(GPU)
    rows = [
        DrawRow(SamplingParams(temperature=temperature, seed=(1 << 64) - 1 - i), 31000 + i, TokenHistory((), ()))
        for i, temperature in enumerate(temperatures)
    ]
    seeds = torch.tensor([seed_pattern(row.params.seed) for row in rows], device=GPU)
    positions = torch.tensor([row.position for row in rows], device=GPU)
    temperature = torch.tensor(temperatures, dtype=torch.float64, device=GPU)
    graph, drawn = captured(lambda: draw_ids(logits, seeds, positions, temperature, count=count))
    graph.replay()
    assert torch.equal(drawn.ids, top_candidates(logits, rows, count))
    assert not drawn.status.any()
