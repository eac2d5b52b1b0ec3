"""The kernel of whole spans: its plan on any machine, its source where a compiler is, its results on a GPU."""

import pytest
import torch
from torch.nn import functional

from ssd.layers.fused import Affine, SpanWeights

pytest.importorskip("cuda.bindings", reason="cuda-bindings, which torch for CUDA brings, is not installed")

from ssd.kernels.cuda import CudaError, compile_source
from ssd.kernels.span import HEIGHTS, SOURCE, SpanPlan, SpanShape, make_spans

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine")
SHAPES = {
    "135m": SpanShape(576, 576, 1536, 960),
    "0.6b": SpanShape(1024, 2048, 3072, 4096),
    "1b": SpanShape(2048, 2048, 8192, 3072),
    "8b": SpanShape(4096, 4096, 14336, 6144),
    "32b": SpanShape(5120, 8192, 25600, 10240),
    "70b": SpanShape(8192, 8192, 28672, 10240),
}
SHARED_MEMORY_OF_A_BLOCK = 232_448
"""Bytes, compute capability 9."""
EPS = 1e-5


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("rows", HEIGHTS)
def test_rings_and_exchange_fit_into_a_blocks_memory(name, rows):
    assert SHAPES[name].suits
    assert SpanPlan().shared_bytes(SHAPES[name], rows) <= SHARED_MEMORY_OF_A_BLOCK


def test_widths_that_no_tile_divides_do_not_suit():
    assert not SpanShape(576, 576, 1500, 960).suits
    assert not SpanShape(100, 576, 1536, 960).suits
    assert not SpanShape(576, 576, 1536, 964).suits


@pytest.mark.parametrize("rows", HEIGHTS)
@pytest.mark.parametrize("name", SHAPES)
def test_the_source_compiles(name, rows):
    try:
        image = compile_source(SOURCE, SpanPlan().defines(SHAPES[name], rows), "sm_90")
    except CudaError:
        raise
    except RuntimeError as error:
        pytest.skip(f"no compiler: {error}")
    assert image.startswith(b"\x7fELF")


def test_a_block_is_never_given_less_memory_than_it_needs():
    plan = SpanPlan().defines(SHAPES["0.6b"], HEIGHTS[0])
    try:
        with pytest.raises(CudaError, match="a block is given what it needs"):
            compile_source(SOURCE, plan | {"SHARED_BYTES": plan["SHARED_BYTES"] - 8192}, "sm_90")
    except RuntimeError as error:
        pytest.skip(f"no compiler: {error}")


def random_layers(shape, count, *, bias, device="cuda"):
    chance = torch.Generator(device).manual_seed(1)

    def numbers(*size, scale):
        return (torch.randn(*size, generator=chance, device=device) * scale).bfloat16()

    def product(outputs, inputs):
        return Affine(numbers(outputs, inputs, scale=inputs**-0.5), numbers(outputs, scale=0.5) if bias else None)

    def norm():
        return 1 + numbers(shape.hidden, scale=0.1), EPS

    norms = [norm() for _ in range(2 * count)]
    return [
        SpanWeights(
            product(shape.hidden, shape.attended),
            product(2 * shape.inner, shape.hidden),
            product(shape.hidden, shape.inner),
            product(shape.qkv, shape.hidden) if i + 1 < count else None,
            norms[2 * i],
            norms[2 * i + 1],
        )
        for i in range(count)
    ]


def exact(layer, attended, before):
    """The span in float64, rounded nowhere."""

    def apply(product, x):
        return functional.linear(x, product.weight.double(), None if product.bias is None else product.bias.double())

    def normed(x, norm):
        return functional.rms_norm(x, x.shape[-1:], norm[0].double(), norm[1])

    total = before.double() + apply(layer.out, attended.double())
    gate, up = apply(layer.up, normed(total, layer.norm)).chunk(2, dim=-1)
    total = total + apply(layer.down, functional.silu(gate) * up)
    return total, None if layer.qkv is None else apply(layer.qkv, normed(total, layer.next_norm))


def far(given, expected):
    return float((given.double() - expected).norm() / expected.norm())


class Made:
    def __init__(self, shape, *, bias=False, count=2):
        self.layers = random_layers(shape, count, bias=bias)
        self.spans = make_spans(self.layers)
        if self.spans is None:
            pytest.skip("this device has no kernel of whole spans")
        chance = torch.Generator("cuda").manual_seed(2)
        rows = self.spans.most_rows
        self.attended = torch.randn(rows, shape.attended, generator=chance, device="cuda").bfloat16()
        self.before = torch.randn(rows, shape.hidden, generator=chance, device="cuda").bfloat16()

    def run(self, places, layer=0):
        """Copies of what the span of `layer` gives for rows at these places."""
        self.spans.begin()
        total, qkv = self.spans.run(layer, self.attended[places].contiguous(), self.before[places].contiguous())
        return total.clone(), None if qkv is None else qkv.clone()


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", ["135m", "0.6b", "1b", "8b"])
def test_spans_equal_what_they_stand_for(name, bias):
    made = Made(SHAPES[name], bias=bias)
    for tokens in sorted({1, 2, 7, 8, 9, 16, 17, 31, made.spans.most_rows}):
        if tokens > made.spans.most_rows:
            continue
        for number, layer in enumerate(made.layers):
            total, qkv = made.run(range(tokens), number)
            expected = exact(layer, made.attended[:tokens], made.before[:tokens])
            assert far(total, expected[0]) < 5e-3
            assert qkv is None if expected[1] is None else far(qkv, expected[1]) < 6e-3


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("name", ["135m", "0.6b"])
def test_a_tokens_bits_depend_on_no_company(name):
    made = Made(SHAPES[name])
    whole = made.run(range(made.spans.most_rows))
    for places in ([0], [3], [5, 2], list(range(7)), list(range(made.spans.most_rows))[::-1]):
        for given, expected in zip(made.run(places), whole, strict=True):
            assert torch.equal(given, expected[places]), places


@pytest.mark.gpu
@needs_cuda
def test_a_captured_chain_of_spans_gives_the_same_each_time():
    made = Made(SHAPES["0.6b"], count=6)
    attended, before = made.attended[:5].contiguous(), made.before[:5].contiguous()

    def chain():
        made.spans.begin()
        total = before
        for number in range(len(made.layers)):
            # A kernel that writes what the span reads, right before it, as attention does.
            total, _ = made.spans.run(number, attended * 1.0, total)
        return total

    expected = chain().clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        given = chain()
    for _ in range(50):
        graph.replay()
        assert torch.equal(given, expected)
