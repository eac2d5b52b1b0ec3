"""Slow, obvious references that the tests hold the drawing against. Plain Python, one row at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ssd.speculation.params import SamplingParams
from ssd.speculation.philox import gumbel, seed_pattern


def adjusted_row(
    row: Sequence[float], params: SamplingParams, prompt: Sequence[int], output: Sequence[int], forbidden=()
) -> list[float]:
    """Bias, penalties and forbidden ids, in Python floats."""
    out = list(row)
    for token, bias in params.logit_bias:
        out[token] += bias
    for token in {*prompt, *output}:
        out[token] = (
            out[token] / params.repetition_penalty if out[token] > 0 else out[token] * params.repetition_penalty
        )
    for token in set(output):
        out[token] -= params.frequency_penalty * list(output).count(token) + params.presence_penalty
    for token in forbidden:
        out[token] = -math.inf
    return out


def filtered_law(row: Sequence[float], params: SamplingParams) -> list[float]:
    """Softmax after temperature and filters of an adjusted row; temperature > 0."""
    peak = max(row)
    weights = [math.exp((x - peak) / params.temperature) for x in row]
    order = sorted(range(len(row)), key=lambda v: (-row[v], v))
    if params.top_k:
        order = order[: params.top_k]
    if params.top_p < 1:
        total, mass, kept = sum(weights[v] for v in order), 0.0, []
        for v in order:
            if mass >= params.top_p * total * (1 - 1e-12):
                break
            kept.append(v)
            mass += weights[v]
        order = kept
    order = [v for v in order if weights[v] >= params.min_p * (1 - 1e-12)]
    total = sum(weights[v] for v in order)
    return [weights[v] / total if v in order else 0.0 for v in range(len(row))]


def coupled_token(row: Sequence[float], params: SamplingParams, position: int) -> int:
    """The token that an adjusted row must give."""
    if params.temperature == 0:
        return max(range(len(row)), key=lambda v: (row[v], -v))
    law = filtered_law(row, params)
    noise = gumbel(torch.tensor([seed_pattern(params.seed)]), torch.tensor([position]), len(row))[0].tolist()
    peak = max(row)
    alive = [v for v in range(len(row)) if law[v] > 0]
    return max(alive, key=lambda v: ((row[v] - peak) / params.temperature + noise[v], -v))
