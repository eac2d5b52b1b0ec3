"""Backends by name, and what an installed flash_attn is asked for."""

import importlib.util
import sys
import types
from dataclasses import replace

import pytest
import torch

from ssd.kernels.cases import Heads, Setting, branch_case, sequence_case
from ssd.layers.attention_flash import FlashAttention, find_flash_kernel
from ssd.layers.attention_torch import TorchAttention
from ssd.layers.attention_triton import TritonAttention
from ssd.layers.backends import attention_backend

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_auto_is_triton_on_a_gpu_and_torch_elsewhere():
    assert isinstance(attention_backend("auto", CPU), TorchAttention)
    assert isinstance(attention_backend("auto", GPU), TritonAttention)
    assert isinstance(attention_backend("torch", GPU), TorchAttention)


@pytest.mark.parametrize("name", ["torch", "triton"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_backends_know_whether_they_are_deterministic(name, deterministic):
    assert attention_backend(name, CPU, deterministic=deterministic).deterministic is deterministic


def test_what_is_not_known_or_not_installed_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="'magic' is not known; known: auto, torch, triton, flash_attn"):
        attention_backend("magic", CPU)
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(ValueError, match="flash_attn, which is not installed"):
        attention_backend("flash_attn", CPU)
    with pytest.raises(ValueError, match="not deterministic"):
        attention_backend("flash_attn", CPU, deterministic=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="triton, which is not installed"):
        attention_backend("triton", CPU)
    assert isinstance(attention_backend("auto", GPU), TorchAttention)


def paged_reference(q, keys, values, starts, lengths, tables):
    """Paged causal attention of rows, in plain torch."""
    outputs = []
    size = keys.shape[1]
    for row, (begin, end) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        length = int(lengths[row])
        blocks = tables[row, : -(-length // size)].long()
        k, v = (x[blocks].flatten(0, 1)[:length].transpose(0, 1) for x in (keys, values))
        fold = q.shape[1] // k.shape[0]
        seen = torch.arange(length) <= torch.arange(length - (end - begin), length)[:, None]
        outputs.append(
            torch.nn.functional.scaled_dot_product_attention(
                q[begin:end].transpose(0, 1), k.repeat_interleave(fold, 0), v.repeat_interleave(fold, 0), seen
            ).transpose(0, 1)
        )
    return torch.cat(outputs)


def fake_version_2(q, k, v, starts, key_starts, most, longest, *, causal, block_table):
    assert causal and key_starts.dtype == starts.dtype == block_table.dtype == torch.int32
    return paged_reference(q, k, v, starts, key_starts.diff(), block_table)


def fake_version_4(q, k, v, *, cu_seqlens_q, seqused_k, page_table, max_seqlen_q, causal):
    assert causal and max_seqlen_q == 3
    return paged_reference(q, k, v, cu_seqlens_q, seqused_k, page_table), None


@pytest.mark.parametrize(("version", "block_size"), [(2, 256), (4, 16)])
def test_flash_attn_gets_the_paged_cache(monkeypatch, version, block_size):
    package, cute = types.ModuleType("flash_attn"), types.ModuleType("flash_attn.cute")
    package.flash_attn_varlen_func = fake_version_2
    cute.flash_attn_varlen_func = fake_version_4
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setitem(sys.modules, "flash_attn.cute", cute if version == 4 else None)
    case = sequence_case(Setting(Heads(4, 2, 16), block_size, torch.bfloat16, CPU), [(1, 30), (3, 40), (2, 2)])
    kernel = find_flash_kernel()
    written = []

    class Writes(TritonAttention):
        def write(self, k, v, cache_k, cache_v, ctx):
            written.append(len(k))
            cache_k[ctx.slots], cache_v[ctx.slots] = k, v

    result, keys, _ = case.run(FlashAttention(kernel, Writes()))
    expected, cache_k, _ = case.run(TorchAttention())
    assert written == [6] and torch.equal(keys, cache_k)
    torch.testing.assert_close(result, expected, rtol=0, atol=3e-2)


def test_what_flash_attn_does_not_take_goes_to_triton(device):
    class Fallback(TritonAttention):
        def attend(self, q, k, v, cache_k, cache_v, ctx):
            return "fallback"

    setting = Setting(Heads(4, 2, 16), 256, torch.float16, device)
    backend = FlashAttention(types.SimpleNamespace(page=256, compute=None), Fallback())
    assert branch_case(setting, [[(5, 1)]]).run(backend)[0] == "fallback"
    assert sequence_case(replace(setting, dtype=torch.float32), [(1, 5)]).run(backend)[0] == "fallback"
    assert sequence_case(replace(setting, block_size=16), [(1, 5)]).run(backend)[0] == "fallback"
