"""The skinny product equals torch's in float32 up to one rounding, whatever the tile, the splits and the rows."""

import pytest
import torch

from ssd.kernels.linear import Residual, Squares, linear, linear_into
from ssd.kernels.ops import TritonOps
from ssd.kernels.tiles import TILES, LinearTile, guessed_tile, tile_for
from ssd.layers.ops import TorchOps


def rounded_product(x, weight, bias):
    product = x.float() @ weight.float().T
    return product if bias is None else product + bias.float()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 1e-3), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("rows", [1, 16, 17, 64])
@pytest.mark.parametrize(
    ("outputs", "inputs", "tile"),
    [
        (64, 64, LinearTile(32, 32, 1, 2, 4)),
        (72, 136, LinearTile(32, 64, 2, 2, 4)),
        (100, 320, LinearTile(16, 64, 4, 2, 4)),
        (48, 96, LinearTile(64, 64, 4, 2, 4)),
    ],
)
def test_any_tile_equals_torch(device, dtype, tolerance, rows, outputs, inputs, tile):
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, inputs, generator=generator).to(dtype).to(device)
    weight = (torch.randn(outputs, inputs, generator=generator) / inputs**0.5).to(dtype).to(device)
    bias = torch.randn(outputs, generator=generator).to(dtype).to(device) if rows % 2 else None
    arrivals = torch.zeros(64, dtype=torch.int32, device=device)
    result = linear(x, weight, bias, arrivals, tile)
    torch.testing.assert_close(result.float(), rounded_product(x, weight, bias), rtol=tolerance, atol=tolerance)
    assert not arrivals.any()


def test_a_rows_sum_depends_on_no_row_beside_it(device):
    x, weight = torch.randn(16, 256, device=device).half(), torch.randn(48, 256, device=device).half()
    arrivals = torch.zeros(64, dtype=torch.int32, device=device)
    tile = LinearTile(16, 32, 4, 2, 4)
    together = linear(x, weight, None, arrivals, tile)
    for row in (0, 5, 15):
        assert torch.equal(linear(x[row : row + 1], weight, None, arrivals, tile)[0], together[row])


def test_rows_may_lie_apart(device):
    x = torch.randn(3, 128, device=device).half()[:, :64]
    weight = torch.randn(32, 64, device=device).half()
    ops = TritonOps(device)
    assert ops.skinny(x, weight)
    torch.testing.assert_close(
        ops.linear(x, weight, None).float(), rounded_product(x, weight, None), rtol=1e-3, atol=2e-2
    )


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (torch.zeros(65, 64).half(), torch.zeros(32, 64).half()),
        (torch.zeros(4, 64), torch.zeros(32, 64)),
        (torch.zeros(4, 63).half(), torch.zeros(32, 63).half()),
        (torch.zeros(0, 64).half(), torch.zeros(32, 64).half()),
    ],
)
def test_what_the_kernel_is_not_for_goes_to_torch(device, x, weight):
    x, weight = x.to(device), weight.to(device)
    ops = TritonOps(device)
    assert not ops.skinny(x, weight)
    assert torch.equal(ops.linear(x, weight, None), torch.nn.functional.linear(x, weight))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [65, 128, 129, 300])
def test_many_rows_equal_torch_where_its_own_products_are_not_wanted(device, rows, bias):
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 320, generator=generator).bfloat16().to(device)
    weight = (torch.randn(136, 320, generator=generator) / 320**0.5).bfloat16().to(device)
    added = torch.randn(136, generator=generator).bfloat16().to(device) if bias else None
    ops = TritonOps(device, own_products=True)
    assert not ops.skinny(x, weight)
    torch.testing.assert_close(
        ops.linear(x, weight, added).float(), rounded_product(x, weight, added), rtol=1e-2, atol=1e-2
    )
    assert not ops.arrivals.any()


@pytest.mark.parametrize("outputs", [64, 1000, 4096, 51200, 151936])
@pytest.mark.parametrize("inputs", [64, 1024, 5120, 25600])
def test_guessed_tiles_share_the_work_among_splits_that_all_have_some(outputs, inputs):
    tile = guessed_tile(outputs, inputs)
    steps = -(-inputs // tile.inputs)
    assert 1 <= tile.splits <= steps
    assert tile_for(outputs, inputs) in (tile, dict(TILES).get((outputs, inputs)))


TILES_AND_SHAPES = [
    (64, 64, LinearTile(32, 32, 1, 2, 4)),
    (72, 136, LinearTile(32, 64, 2, 2, 4)),
    (80, 320, LinearTile(16, 64, 4, 2, 4)),
]


def random_parts(outputs, inputs, rows, device):
    generator = torch.Generator().manual_seed(rows)

    def make(*shape):
        return torch.randn(*shape, generator=generator).bfloat16().to(device)

    weight = (make(outputs, inputs).float() / inputs**0.5).bfloat16()
    return make(rows, inputs), weight, make(outputs), torch.zeros(64, dtype=torch.int32, device=device), make


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize(("outputs", "inputs", "tile"), TILES_AND_SHAPES)
def test_a_product_ends_in_the_residual_stream(device, rows, outputs, inputs, tile):
    x, weight, bias, arrivals, make = random_parts(outputs, inputs, rows, device)
    stream, norm = make(rows, outputs), make(outputs)
    total, scaled, squares = linear_into(x, weight, bias, arrivals, tile, Residual(stream, norm))
    expected = rounded_product(x, weight, bias).bfloat16() + stream
    torch.testing.assert_close(total.float(), expected.float(), rtol=2e-2, atol=2e-2)
    # What follows is made of the sum as it was rounded; the interpreter rounds towards zero.
    torch.testing.assert_close(scaled.float(), total.float() * norm.float(), rtol=8e-3, atol=1e-6)
    torch.testing.assert_close(squares.sum(0)[:rows], total.float().square().sum(1), rtol=1e-5, atol=1e-4)
    assert not arrivals.any()


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize(("outputs", "inputs", "tile"), TILES_AND_SHAPES)
def test_a_product_of_a_stream_is_that_of_its_norm(device, gated, rows, outputs, inputs, tile):
    total, weight, bias, arrivals, make = random_parts(outputs, inputs, rows, device)
    norm, eps = make(inputs), 1e-5
    pieces = total.float().square().split(24, dim=1)
    squares = torch.full((len(pieces), 64), 7.0, device=device)
    squares[:, :rows] = torch.stack([piece.sum(1) for piece in pieces])
    scaled = (total.float() * norm.float()).bfloat16()
    result = linear(scaled, weight, bias, arrivals, tile, squares=Squares(squares, eps), gated=gated)
    normed = torch.nn.functional.rms_norm(total.float(), (inputs,), norm.float(), eps)
    expected = normed @ weight.float().T + bias.float()
    if gated:
        expected = TorchOps().silu_mul(expected)
    assert result.shape == expected.shape
    torch.testing.assert_close(result.float(), expected, rtol=3e-2, atol=3e-2)
