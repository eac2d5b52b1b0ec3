"""The reference ops against their definitions, and the layers that are made of them."""

import pytest
import torch

from ssd.layers.build import Build
from ssd.layers.norm import RMSNorm
from ssd.layers.ops import TorchOps, make_ops, rotate
from ssd.layers.rows import AllRows, RowTiles

OPS = TorchOps()


def normed(x, weight, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def test_the_sum_and_its_norm():
    x, residual, weight = (torch.randn(*shape, dtype=torch.float64) for shape in ((5, 8), (5, 8), (8,)))
    out, total = OPS.add_rms_norm(x, residual, weight, 1e-6)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(out, normed(x + residual, weight, 1e-6))


def test_the_sum_is_rounded_before_it_is_normed():
    x, residual = torch.randn(4, 64, dtype=torch.bfloat16), torch.randn(4, 64, dtype=torch.bfloat16)
    weight = torch.randn(64, dtype=torch.bfloat16)
    out, total = OPS.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(out, OPS.rms_norm(total, weight, 1e-5))


def test_gate_times_up():
    gate_up = torch.randn(3, 10, dtype=torch.float64)
    gate, up = gate_up[:, :5], gate_up[:, 5:]
    torch.testing.assert_close(OPS.silu_mul(gate_up), gate * torch.sigmoid(gate) * up)


@pytest.mark.parametrize("with_norm", [False, True])
def test_q_and_k_are_turned_and_v_is_not(with_norm):
    heads, kv_heads, dim, tokens = 4, 2, 6, 5
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim, dtype=torch.float64)
    cos_sin = torch.randn(tokens, dim, dtype=torch.float64)
    norms = [torch.randn(dim, dtype=torch.float64) for _ in range(2)] if with_norm else [None, None]
    out = OPS.turn(qkv, cos_sin, heads, kv_heads, *norms, 1e-6)
    q, k, v = qkv.view(tokens, -1, dim).split([heads, kv_heads, kv_heads], dim=1)
    if with_norm:
        q, k = normed(q, norms[0], 1e-6), normed(k, norms[1], 1e-6)
    torch.testing.assert_close(out, torch.cat([rotate(q, cos_sin), rotate(k, cos_sin), v], dim=1))


def test_layers_compute_with_the_ops_they_are_built_with():
    class Doubling(TorchOps):
        def rms_norm(self, x, weight, eps):
            return 2 * super().rms_norm(x, weight, eps)

    plain, doubled = RMSNorm(4, 1e-6, Build()), RMSNorm(4, 1e-6, Build(ops=Doubling()))
    for norm in (plain, doubled):
        norm.weight.fill_(1.0)
    x = torch.randn(3, 4)
    assert torch.equal(doubled(x), 2 * plain(x))
    assert torch.equal(doubled.add(x, x)[0], 2 * plain.add(x, x)[0])


@pytest.mark.parametrize("count", [1, 4, 7])
def test_tiles_take_apart_what_gives_two_tensors(count):
    a, b = torch.randn(count, 3), torch.randn(count, 3)

    def both(a, b):
        return a + b, a * 2

    for tiled, whole in zip(RowTiles(4).apply(both, a, b), AllRows().apply(both, a, b), strict=True):
        assert torch.equal(tiled, whole)


def test_names_of_ops():
    cpu = torch.device("cpu")
    assert isinstance(make_ops("auto", cpu, torch.bfloat16), TorchOps)
    assert isinstance(make_ops("torch", torch.device("cuda"), torch.bfloat16), TorchOps)
    assert isinstance(make_ops("auto", torch.device("cuda"), torch.float64), TorchOps)
    with pytest.raises(ValueError, match="known: auto, torch, triton"):
        make_ops("fast", cpu, torch.float32)
