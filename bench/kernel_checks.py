"""Every kernel against its reference on the GPU, in float32 and bfloat16, with relative errors."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from bench.kernel_parts import HEADS, LINEARS, VOCAB
from ssd.kernels.cases import AttentionCase, Heads, Setting, branch_case, sequence_case
from ssd.kernels.draw import draw_ids
from ssd.kernels.ops import TritonOps
from ssd.layers.attention_torch import TorchAttention
from ssd.layers.attention_triton import TritonAttention
from ssd.layers.ops import TorchOps
from ssd.speculation.params import SamplingParams
from ssd.speculation.penalties import TokenHistory
from ssd.speculation.philox import seed_pattern
from ssd.speculation.sampling import DrawRow, top_candidates

LIMITS = {torch.float32: 2e-5, torch.bfloat16: 1e-2}
"""Largest error allowed, relative to the largest number of the reference computed in float64."""


@dataclass(frozen=True)
class Check:
    """One comparison: the error, and whether it is within its limit."""

    part: str
    error: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.error <= self.limit


def checks(device: torch.device, early: bool) -> Iterator[Check]:
    """All comparisons, each as soon as it is made."""
    for dtype in LIMITS:
        yield from _attention(device, dtype, early)
        yield from _rows(device, dtype, early)
        yield from _draws(device, dtype)
    yield from _linears(device, early)


def relative(result: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference by the largest number; infinite where a number is not finite."""
    if not bool(result.isfinite().all()):
        return float("inf")
    return ((result.double() - expected.double()).abs().max() / expected.double().abs().max()).item()


def _attention(device: torch.device, dtype: torch.dtype, early: bool) -> Iterator[Check]:
    for heads in (*HEADS.values(), Heads(9, 3, 64)):
        setting = Setting(heads, 16, dtype, device, spare_width=3)
        cases = {
            "decode": sequence_case(setting, [(1, 1), (1, 700), (1, 5000), (1, 32768)]),
            "verify": sequence_case(setting, [(7, 7), (7, 1030), (7, 9000)]),
            "prefill": sequence_case(setting, [(300, 300), (1, 1500), (130, 3000)]),
            "branches": branch_case(setting, [[(4096 - i % 7, 1 + i % 7) for i in range(24)], [(50, 2), (0, 3)]]),
        }
        for name, case in cases.items():
            for deterministic in (False, True):
                error = _attention_error(case, TritonAttention(deterministic=deterministic, early=early))
                mode = " deterministic" if deterministic else ""
                yield Check(f"attention {name}{mode} {heads} {dtype}", error, LIMITS[dtype])


def _attention_error(case: AttentionCase, backend: TritonAttention) -> float:
    result, cache_k, cache_v = case.run(backend)
    expected, keys, values = case.as_dtype(torch.float64).run(TorchAttention())
    if not (torch.equal(cache_k.double(), keys) and torch.equal(cache_v.double(), values)):
        return float("inf")
    return relative(result, expected)


def _rows(device: torch.device, dtype: torch.dtype, early: bool) -> Iterator[Check]:
    own, reference = TritonOps(device, early=early), TorchOps()
    x, residual, weight = (torch.randn(*shape, device=device).to(dtype) for shape in ((24, 5120), (24, 5120), (5120,)))
    cos_sin, norm = torch.randn(24, 128, device=device), torch.randn(128, device=device).to(dtype)
    qkv = torch.randn(24, 80 * 128, device=device).to(dtype)
    for name, results in {
        "rms_norm": [ops.rms_norm(x, weight, 1e-6) for ops in (own, reference)],
        "add_rms_norm": [torch.cat(ops.add_rms_norm(x, residual, weight, 1e-6)) for ops in (own, reference)],
        "silu_mul": [ops.silu_mul(x) for ops in (own, reference)],
        "turn": [ops.turn(qkv, cos_sin, 64, 8, norm, norm, 1e-6) for ops in (own, reference)],
    }.items():
        yield Check(f"{name} {dtype}", relative(*results), LIMITS[dtype])


def _linears(device: torch.device, early: bool) -> Iterator[Check]:
    ops = TritonOps(device, early=early)
    for name, (outputs, inputs) in LINEARS.items():
        weight = torch.randn(outputs, inputs, device=device).to(torch.bfloat16) / inputs**0.5
        for rows in (1, 17, 64):
            x = torch.randn(rows, inputs, device=device).to(torch.bfloat16)
            expected = x.double() @ weight.double().T
            first, again = (ops.linear(x, weight, None) for _ in range(2))
            error = relative(first, expected) if torch.equal(first, again) else float("inf")
            yield Check(f"linear {name} M={rows}", error, LIMITS[torch.bfloat16])


def _draws(device: torch.device, dtype: torch.dtype) -> Iterator[Check]:
    temperatures = [0.0, 0.7, 1.0, 1.3, 0.01, 30.0]
    logits = (torch.randn(len(temperatures), VOCAB, device=device) * 3).to(dtype)
    seeds = [(1 << 64) - 1 - 12345 * i for i in range(len(temperatures))]
    rows = [
        DrawRow(SamplingParams(temperature=temperature, seed=seed), 1000 + i, TokenHistory((), ()))
        for i, (temperature, seed) in enumerate(zip(temperatures, seeds, strict=True))
    ]
    for count in (1, 8, 32):
        drawn = draw_ids(
            logits,
            torch.tensor([seed_pattern(seed) for seed in seeds], device=device),
            torch.tensor([row.position for row in rows], device=device),
            torch.tensor(temperatures, dtype=torch.float64, device=device),
            count=count,
        )
        wrong = (drawn.ids != top_candidates(logits, rows, count)).sum().item() + drawn.status.sum().item()
        yield Check(f"draw count={count} {dtype} (ids that differ)", float(wrong), 0.0)
