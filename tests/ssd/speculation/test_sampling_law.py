"""Coupled draws follow the filtered softmax, and two models that share noise agree as often as promised."""

from __future__ import annotations

import pytest
import torch

from ssd.speculation.penalties import adjust
from ssd.speculation.sampling import DrawRow, SamplingParams, TokenHistory, draw, top_candidates
from tests.ssd.speculation.laws import adjusted_row, filtered_law

DRAWS = 200_000
LOGITS = (1.2, -0.4, 0.9, 2.0, -1.5, 0.1, 1.1, -0.2)
PROMPT, OUTPUT, AHEAD = (0, 3), (3, 6, 6), (2, 3)

FILTERS = {
    "plain": {},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.15},
    "all filters": {"top_k": 6, "top_p": 0.9, "min_p": 0.05},
    "penalties": {"repetition_penalty": 1.4, "presence_penalty": 0.3, "frequency_penalty": 0.25},
    "penalties and filters": {
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
        "top_p": 0.85,
        "logit_bias": ((4, 2.5),),
    },
}


def counts_of(
    params: SamplingParams, history: TokenHistory, *, by_seed: bool, logits: torch.Tensor | None = None
) -> torch.Tensor:
    """Counts of each token over many positions of one seed, or over many seeds at one position."""
    logits = (torch.tensor(LOGITS, dtype=torch.float64) if logits is None else logits).expand(DRAWS, -1)
    values = {name: getattr(params, name) for name in SamplingParams.__dataclass_fields__ if name != "seed"}
    if by_seed:
        rows = [
            DrawRow(SamplingParams(seed=s * 0x9E3779B97F4A7C15 % 2**64, **values), 7, history) for s in range(DRAWS)
        ]
    else:
        rows = [DrawRow(params, position, history) for position in range(DRAWS)]
    return torch.bincount(top_candidates(logits, rows, 1)[:, 0], minlength=len(LOGITS))


def p_value(counts: torch.Tensor, law: list[float]) -> float:
    expected = torch.tensor(law, dtype=torch.float64) * counts.sum()
    alive = expected > 0
    assert int(counts[~alive].sum()) == 0, "a filtered token was drawn"
    statistic = ((counts - expected) ** 2 / expected)[alive].sum().item()
    half_freedom, half_statistic = torch.tensor([(int(alive.sum()) - 1) / 2, statistic / 2], dtype=torch.float64)
    return torch.special.gammaincc(half_freedom, half_statistic).item() if half_freedom > 0 else 1.0


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("name", ["plain", "top_k", "top_p", "min_p", "all filters"])
def test_draws_over_positions_follow_the_filtered_softmax(name, temperature):
    params = SamplingParams(temperature=temperature, seed=2**63 + 11, **FILTERS[name])
    counts = counts_of(params, TokenHistory(PROMPT), by_seed=False)
    assert p_value(counts, filtered_law(LOGITS, params)) > 1e-4


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_draws_over_seeds_follow_the_filtered_softmax(temperature):
    params = SamplingParams(temperature=temperature)
    assert p_value(counts_of(params, TokenHistory(()), by_seed=True), filtered_law(LOGITS, params)) > 1e-4


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("name", ["penalties", "penalties and filters"])
def test_draws_with_penalties_follow_the_law_after_penalties(name, temperature):
    params = SamplingParams(temperature=temperature, seed=17, **FILTERS[name])
    history = TokenHistory(PROMPT, OUTPUT)
    adjusted = torch.tensor(LOGITS, dtype=torch.float64)
    adjust(adjusted, params, history, AHEAD, ())
    # Adjusting 200k equal rows one by one would only be slow: draw from the adjusted row and show that it is the same.
    unpenalised = SamplingParams(temperature=temperature, top_p=params.top_p, seed=params.seed)
    counts = counts_of(unpenalised, TokenHistory(()), by_seed=False, logits=adjusted)
    law = filtered_law(adjusted_row(LOGITS, params, PROMPT, (*OUTPUT, *AHEAD)), params)
    assert p_value(counts, law) > 1e-4
    some = range(500)
    direct = draw(
        torch.tensor(LOGITS, dtype=torch.float64).expand(500, -1), [DrawRow(params, p, history, AHEAD) for p in some]
    )
    assert direct == draw(adjusted.expand(500, -1), [DrawRow(unpenalised, p, TokenHistory(())) for p in some])


def test_a_wrong_law_is_noticed():
    params = SamplingParams(temperature=1.0)
    counts = counts_of(params, TokenHistory(()), by_seed=False)
    assert p_value(counts, filtered_law(LOGITS, SamplingParams(temperature=1.03))) < 1e-4


def test_consecutive_positions_are_independent():
    logits = torch.tensor(LOGITS, dtype=torch.float64).expand(DRAWS, -1)
    params = SamplingParams(seed=3)
    ids = top_candidates(logits, [DrawRow(params, p, TokenHistory(())) for p in range(DRAWS)], 1)[:, 0]
    pairs = torch.bincount(ids[:-1:2] * 8 + ids[1::2], minlength=64)
    law = filtered_law(LOGITS, params)
    assert p_value(pairs, [a * b for a in law for b in law]) > 1e-4


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0, 2.0])
def test_two_models_with_shared_noise_agree_at_least_as_often_as_promised(spread):
    count = 20_000
    generator = torch.Generator().manual_seed(4)
    target = torch.tensor(LOGITS, dtype=torch.float64)
    draft = target + spread * torch.randn(8, dtype=torch.float64, generator=generator)
    distance = 0.5 * (target.softmax(0) - draft.softmax(0)).abs().sum().item()
    rows = [DrawRow(SamplingParams(seed=8), position, TokenHistory(())) for position in range(count)]
    drawn = [top_candidates(law.expand(count, -1), rows, 1)[:, 0] for law in (target, draft)]
    agreement = (drawn[0] == drawn[1]).double().mean().item()
    assert agreement >= (1 - distance) / (1 + distance) - 4 * 0.5 / count**0.5
    assert agreement <= 1 - distance + 4 * 0.5 / count**0.5


def test_draw_returns_what_top_candidates_put_first():
    logits = torch.tensor(LOGITS).expand(50, -1)
    rows = [DrawRow(SamplingParams(top_p=0.9), p, TokenHistory(())) for p in range(50)]
    assert [d.id for d in draw(logits, rows)] == top_candidates(logits, rows, 5)[:, 0].tolist()
