"""A step through whole spans gives what a step layer by layer gives, with spans that are plain torch."""

import pytest
import torch
from torch.nn import functional

from ssd.layers.attention_torch import TorchAttention
from ssd.layers.ops import TorchOps
from ssd.models.loader import load_model
from ssd.runtime.blocks import BlockPool, BlockTable
from ssd.runtime.kv_cache import KVCache
from ssd.runtime.runner import ModelRunner, RunRow
from tests.ssd.engine import random_ids
from tests.toy import make_toy


class ReadingAttention(TorchAttention):
    """Reads keys that are written already."""

    def read(self, q, cache_k, cache_v, ctx):
        slots = ctx.slots
        return self.attend(q, cache_k[slots], cache_v[slots], cache_k, cache_v, ctx)


class WholeAttention(ReadingAttention):
    """Turns, writes and attends at once, for steps of one token."""

    def __init__(self):
        super().__init__()
        self.taken = 0

    def turn_and_attend(self, qkv, turning, cache_k, cache_v, ctx):
        if len(qkv) > 1:
            return None
        self.taken += 1
        sizes = [turning.heads, turning.kv_heads, turning.kv_heads]
        turned = TorchOps().turn(qkv, turning.cos_sin, *sizes[:2], turning.q_norm, turning.k_norm, turning.eps)
        return self.attend(*turned.split(sizes, dim=1), cache_k, cache_v, ctx).flatten(1)


class TorchSpans:
    most_rows = 5

    def __init__(self, layers):
        self.layers, self.begun, self.ran = layers, 0, []

    def begin(self):
        self.begun += 1
        self.ran = []

    def run(self, layer, attended, before):
        self.ran.append(layer)
        weights = self.layers[layer]

        def normed(x, norm):
            return functional.rms_norm(x, x.shape[-1:], *norm)

        total = before + functional.linear(attended, weights.out.weight, weights.out.bias)
        up = functional.linear(normed(total, weights.norm), weights.up.weight, weights.up.bias)
        gate, up = up.chunk(2, dim=-1)
        total = total + functional.linear(functional.silu(gate) * up, weights.down.weight, weights.down.bias)
        if weights.qkv is None:
            return total, None
        return total, functional.linear(normed(total, weights.next_norm), weights.qkv.weight, weights.qkv.bias)


class SpanningTorchOps(TorchOps):
    """Says that every step can be fused; the fused products themselves must not be asked for."""

    made = None

    def fuses(self, x):
        return x.shape[0] <= TorchSpans.most_rows

    def scaled_linear(self, *given, **more):
        raise AssertionError("spans were to be used")

    linear_into = scaled_linear

    def spans(self, layers):
        self.made = TorchSpans(layers)
        return self.made

    def turn_and_write(self, qkv, cos_sin, heads, kv_heads, q_norm, k_norm, eps, cache_k, cache_v, slots):
        turned = self.turn(qkv, cos_sin, heads, kv_heads, q_norm, k_norm, eps)
        cache_k[slots], cache_v[slots] = turned[:, heads : heads + kv_heads], turned[:, heads + kv_heads :]
        return turned


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_spans_give_what_layers_give(tmp_path, family, monkeypatch):
    path, ops, ids = make_toy(tmp_path, family), SpanningTorchOps(), random_ids(9, seed=1)
    plain = load_model(path, dtype="float64")
    monkeypatch.setattr("ssd.models.loader.make_ops", lambda *given, **more: ops)
    spanned = load_model(path, dtype="float64")

    def logits(loaded, backend, cuts):
        table = BlockTable(BlockPool(8, 4))
        table.ensure(len(ids))
        runner = ModelRunner(loaded.model, loaded.config, KVCache.allocate(loaded, blocks=8, block_size=4), backend)
        parts = [
            runner.run([RunRow(ids[start:stop], start, table, stop - start)])
            for start, stop in zip(cuts, cuts[1:], strict=False)
        ]
        return torch.cat(parts)

    expected = logits(plain, TorchAttention(), [0, 9])
    # A step of more tokens than spans take goes the other way, and leaves the same cache behind.
    assert torch.allclose(logits(spanned, ReadingAttention(), [0, 6, 8, 9]), expected, rtol=1e-9, atol=1e-9)
    assert ops.made.begun == 2
    assert ops.made.ran == list(range(plain.config.layers))
    whole = WholeAttention()
    assert torch.allclose(logits(spanned, whole, [0, 6, 8, 9]), expected, rtol=1e-9, atol=1e-9)
    assert whole.taken == plain.config.layers
