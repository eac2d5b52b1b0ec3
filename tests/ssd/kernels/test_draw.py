"""Drawing in one kernel pass gives the ids of the reference, ties and broken rows included."""

import random

import pytest
import torch

from ssd.kernels.draw import draw_ids
from ssd.speculation.philox import NoiseStream, seed_pattern
from ssd.speculation.sampling import DrawRow, SamplingParams, TokenHistory, top_candidates

SEEDS = [0, 1, (1 << 64) - 1, 1 << 63, 0x0123456789ABCDEF, 77]
POSITIONS = [0, 1, 5, 100_000, 131_071, 9]
TEMPERATURES = [0.0, 1.0, 0.7, 0.01, 50.0, 1e-30]


def drawn(logits, count=1, temperatures=TEMPERATURES):
    return draw_ids(
        logits,
        torch.tensor([seed_pattern(seed) for seed in SEEDS], device=logits.device),
        torch.tensor(POSITIONS, device=logits.device),
        torch.tensor(temperatures, dtype=torch.float64, device=logits.device),
        count=count,
    )


def reference(logits, count=1, temperatures=TEMPERATURES):
    rows = [
        DrawRow(SamplingParams(temperature=temperature, seed=seed), position, TokenHistory((), ()))
        for temperature, seed, position in zip(temperatures, SEEDS, POSITIONS, strict=True)
    ]
    return top_candidates(logits, rows, count)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("vocab", "count"), [(1, 1), (5, 1), (5, 5), (2048, 3), (2049, 1), (5000, 4)])
def test_ids_equal_the_reference(device, dtype, vocab, count):
    generator = torch.Generator().manual_seed(vocab)
    logits = (torch.randn(6, vocab, generator=generator, dtype=torch.float64) * 3).to(dtype).to(device)
    result = drawn(logits, count)
    assert torch.equal(result.ids, reference(logits, count))
    assert not result.status.any()


@pytest.mark.parametrize("seed", range(2))
def test_equal_scores_go_to_the_lower_id(device, seed):
    chance = random.Random(seed)
    logits = torch.tensor([[chance.choice([0.0, 1.0, 2.0]) for _ in range(4200)] for _ in range(6)]).to(device)
    greedy = [0.0] * 6
    assert torch.equal(drawn(logits, 4, greedy).ids, reference(logits, 4, greedy))
    assert torch.equal(drawn(logits, 4).ids, reference(logits, 4))


def test_impossible_tokens_come_last_by_id(device):
    logits = torch.full((6, 2100), float("-inf"))
    logits[:, [7, 2050]] = torch.tensor([1.0, 2.0])
    logits = logits.to(device)
    assert torch.equal(drawn(logits, 4).ids, reference(logits, 4))


def test_broken_rows_are_flagged_and_stop_nothing(device):
    logits = torch.randn(6, 3000, generator=torch.Generator().manual_seed(0))
    logits[1, 2999] = float("nan")
    logits[2, 4] = float("inf")
    logits[3] = float("-inf")
    logits[4, 0] = float("nan")
    logits = logits.to(device)
    result = drawn(logits)
    assert result.status.tolist() == [0, 1, 1, 1, 1, 0]
    good = [0, 5]
    clean = logits.nan_to_num(0.0, 0.0, 0.0)
    assert torch.equal(result.ids[good], reference(clean)[good])


def test_another_stream_draws_other_tokens(device):
    logits = torch.zeros(6, 500, device=device)
    arguments = (
        logits,
        torch.arange(6, device=device),
        torch.arange(6, device=device),
        torch.ones(6, dtype=torch.float64, device=device),
    )
    target, draft = (draw_ids(*arguments, stream=stream).ids for stream in (NoiseStream.TARGET, NoiseStream.DRAFT))
    assert (target != draft).any()


def test_a_count_out_of_range_is_refused(device):
    with pytest.raises(ValueError, match="count must be between 1 and 4"):
        drawn(torch.zeros(6, 4, device=device), 5)
