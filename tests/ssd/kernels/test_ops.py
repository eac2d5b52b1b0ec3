"""Norms, SiLU and rotation equal the reference to the last rounding."""

import pytest
import torch

from ssd.kernels.ops import TritonOps
from ssd.layers.ops import TorchOps

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture
def ops(device):
    return TritonOps(device)


def random(device, *shape, dtype):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).to(device)


def assert_near(result, expected):
    assert result.dtype == expected.dtype and result.shape == expected.shape
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [16, 100, 576])
def test_norms_equal_the_reference(ops, device, dtype, width):
    x, residual, weight = (random(device, *shape, dtype=dtype) for shape in ((5, width), (5, width + 8), (width,)))
    residual = residual[:, :width]
    assert_near(ops.rms_norm(x, weight, 1e-5), TorchOps().rms_norm(x, weight, 1e-5))
    heads = x.view(5, 2, width // 2)
    assert_near(ops.rms_norm(heads, weight[: width // 2], 1e-5), TorchOps().rms_norm(heads, weight[: width // 2], 1e-5))
    for result, expected in zip(
        ops.add_rms_norm(x, residual, weight, 1e-6), TorchOps().add_rms_norm(x, residual, weight, 1e-6), strict=True
    ):
        assert_near(result, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [8, 1500])
def test_silu_mul_equals_the_reference(ops, device, dtype, width):
    gate_up = random(device, 3, 2 * width, dtype=dtype) * 4
    assert_near(ops.silu_mul(gate_up), TorchOps().silu_mul(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 16), (9, 3, 64), (2, 1, 24)])
@pytest.mark.parametrize("normed", [False, True])
def test_turned_heads_equal_the_reference_and_reach_the_cache(ops, device, dtype, heads, kv_heads, dim, normed):
    qkv = random(device, 4, (heads + 2 * kv_heads) * dim, dtype=dtype)
    angles = random(device, 4, dim // 2, dtype=torch.float64)
    wide = torch.promote_types(dtype, torch.float32)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=-1).to(wide)
    q_norm, k_norm = (random(device, dim + i, dtype=dtype)[:dim] if normed else None for i in range(2))
    expected = TorchOps().turn(qkv, cos_sin, heads, kv_heads, q_norm, k_norm, 1e-6)
    assert_near(ops.turn(qkv, cos_sin, heads, kv_heads, q_norm, k_norm, 1e-6), expected)
    cache_k, cache_v = (torch.zeros(7, kv_heads, dim, dtype=dtype, device=device) for _ in range(2))
    slots = torch.tensor([3, -1, 0, 6], device=device)
    result = ops.turn_and_write(qkv, cos_sin, heads, kv_heads, q_norm, k_norm, 1e-6, cache_k, cache_v, slots)
    assert_near(result, expected)
    written = [0, 2, 3]
    untouched = [1, 2, 4, 5]
    assert torch.equal(cache_k[slots[written]], result[written, heads : heads + kv_heads])
    assert torch.equal(cache_v[slots[written]], result[written, heads + kv_heads :])
    assert not cache_k[untouched].any() and not cache_v[untouched].any()


def test_nothing_comes_of_no_rows(ops, device):
    x, weight = torch.zeros(0, 16, device=device), torch.ones(16, device=device)
    assert ops.rms_norm(x, weight, 1e-6).shape == (0, 16)
    assert ops.add_rms_norm(x, x, weight, 1e-6)[0].shape == (0, 16)
    assert ops.silu_mul(x).shape == (0, 8)
    assert ops.turn(x, x[:, :4], 2, 1, None, None, 1e-6).shape == (0, 4, 4)
