"""The tensor functions that a decoder layer is made of, behind one protocol, with the reference in plain torch.

All are pure, and none waits for the device, so that a step made of them can be captured in a CUDA graph.
"""

import importlib
import importlib.util
from typing import Protocol

import torch
from torch.nn import functional

from ssd.runtime.device import shared_under_mps


class Ops(Protocol):
    """One way to compute a layer's parts. Activations are [T, …] in the model's dtype."""

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """x [T, in], weight [out, in], bias [out] → [T, out]."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Over the last dimension, behind any leading ones."""
        ...

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """norm(x + residual) and x + residual, [T, hidden] each; the sum is rounded to the model's dtype."""
        ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2 I] → silu(first half) * second half: [T, I]."""
        ...

    def turn(
        self,
        qkv: torch.Tensor,
        cos_sin: torch.Tensor,
        heads: int,
        kv_heads: int,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
    ) -> torch.Tensor:
        """qkv [T, (Hq + 2 Hkv) d] → [T, Hq + 2 Hkv, d], with q and k turned by cos_sin [T, d] (cos | sin, float32 or
        wider). With q_norm and k_norm, weights [d], each head of q and k is normalised before."""
        ...


class TorchOps:
    """Reference: any device, any dtype."""

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return functional.linear(x, weight, bias)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        # 16-bit inputs are normalised in float32; float64 stays float64.
        return functional.rms_norm(x, (x.shape[-1],), weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = residual + x
        return self.rms_norm(total, weight, eps), total

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up

    def turn(
        self,
        qkv: torch.Tensor,
        cos_sin: torch.Tensor,
        heads: int,
        kv_heads: int,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
    ) -> torch.Tensor:
        by_head = qkv.view(len(qkv), heads + 2 * kv_heads, -1)
        qk, v = by_head.split([heads + kv_heads, kv_heads], dim=1)
        if q_norm is not None and k_norm is not None:
            q, k = qk.split([heads, kv_heads], dim=1)
            qk = torch.cat([self.rms_norm(q, q_norm, eps), self.rms_norm(k, k_norm, eps)], dim=1)
        return torch.cat([rotate(qk, cos_sin), v], dim=1)


def rotate(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """x [T, heads, d], its first and second half being the pairs, turned by cos_sin [T, d]; dtype of x."""
    cos, sin = cos_sin.unsqueeze(1).chunk(2, dim=-1)
    first, second = x.to(cos_sin.dtype).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


OPS = ("auto", "torch", "triton")


def make_ops(name: str, device: torch.device, dtype: torch.dtype, *, early: bool = False) -> Ops:
    """Ops by name; "auto" is triton on a GPU that has it, except in float64, and torch elsewhere. ValueError for an
    unknown name, and for torch's products where they would be wrong. early: Triton's kernels are launched while the one
    before still runs (compute capability 9)."""
    if name not in OPS:
        raise ValueError(f"ops {name!r} are not known; known: {', '.join(OPS)}")
    if name == "auto":
        found = importlib.util.find_spec("triton") is not None
        name = "triton" if device.type == "cuda" and dtype != torch.float64 and found else "torch"
    wrong = dtype.itemsize == 2 and shared_under_mps(device)
    if name == "torch":
        if wrong:
            raise ValueError(
                f"torch's ops, also compiled, give wrong products in {dtype} under MPS: take Triton's or float32"
            )
        return TorchOps()
    # Only now: Triton is not installed everywhere.
    ops: Ops = importlib.import_module("ssd.kernels.ops").TritonOps(device, early=early, own_products=wrong)
    return ops
