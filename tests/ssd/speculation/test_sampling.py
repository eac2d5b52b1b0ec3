"""Drawing: equal to the obvious reference, and blind to batch company."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd.speculation.finish import StopRules
from ssd.speculation.race import full_race, plain_race
from ssd.speculation.sampling import DrawRow, SamplingParams, TokenHistory, block_rows, draw, row_after, top_candidates
from tests.ssd.speculation.laws import adjusted_row, coupled_token

VOCAB = 24
token_ids = st.integers(0, VOCAB - 1)


def off_or(strategy, off):
    return st.one_of(st.just(off), strategy)


params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-300, 0.3, 0.7, 1.0, 1.5, 100.0]),
    top_k=off_or(st.integers(1, 30), 0),
    top_p=off_or(st.floats(0.01, 0.99), 1.0),
    min_p=off_or(st.floats(0.01, 1.0), 0.0),
    repetition_penalty=off_or(st.floats(0.5, 2.0), 1.0),
    presence_penalty=off_or(st.floats(-2, 2), 0.0),
    frequency_penalty=off_or(st.floats(-2, 2), 0.0),
    logit_bias=off_or(st.dictionaries(token_ids, st.floats(-5, 5), max_size=4).map(lambda d: tuple(d.items())), ()),
    seed=st.integers(0, 2**64 - 1),
    logprobs=st.integers(-1, 5),
)


@st.composite
def draw_rows(draw_from):
    history = TokenHistory(draw_from(st.lists(token_ids, max_size=8)), draw_from(st.lists(token_ids, max_size=8)))
    ahead = tuple(draw_from(st.lists(token_ids, max_size=5)))
    forbidden = frozenset(draw_from(st.lists(token_ids, max_size=3)))
    return DrawRow(draw_from(params_strategy), draw_from(st.integers(0, 5000)), history, ahead, forbidden)


def random_logits(count: int, vocab: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    return (3 * torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype)


@settings(deadline=None, max_examples=300)
@given(rows=st.lists(draw_rows(), min_size=1, max_size=5), seed=st.integers(0, 10_000))
def test_draws_equal_the_reference_and_do_not_depend_on_company(rows, seed):
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        logits = random_logits(len(rows), VOCAB, seed, dtype)
        before = logits.clone()
        together = draw(logits, rows)
        assert torch.equal(logits, before)
        assert together == [draw(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)]
        assert together == draw(logits.flip(0), rows[::-1])[::-1]
        if dtype == torch.float64:
            for row, values, drawn in zip(rows, logits.tolist(), together, strict=True):
                output = (*row.history.output_ids, *row.ahead)
                adjusted = adjusted_row(values, row.params, row.history._prompt, output, row.forbidden)
                assert drawn.id == coupled_token(adjusted, row.params, row.position)


MIXED = [
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(top_k=1),
    SamplingParams(top_k=50, seed=5),
    SamplingParams(top_k=5000, top_p=0.7),
    SamplingParams(temperature=1.5, top_p=0.95),
    SamplingParams(temperature=3.0, top_p=0.999),
    SamplingParams(min_p=0.02, seed=2**64 - 1),
    SamplingParams(temperature=0.3, top_p=0.5, min_p=0.1, repetition_penalty=1.2),
    SamplingParams(temperature=0.7, frequency_penalty=0.5, presence_penalty=0.1),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_mixed_batch_over_a_real_vocabulary_draws_bitwise_what_each_row_draws_alone(dtype):
    logits = random_logits(len(MIXED), 49152, 1, dtype)
    history = TokenHistory(range(100), [5, 5, 7])
    rows = [row_after(replace(params, logprobs=3), history, (9, 5)) for params in MIXED]
    together = draw(logits, rows)
    assert together == [draw(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)]
    ranked = top_candidates(logits, rows, 6)
    for i, row in enumerate(rows):
        assert torch.equal(top_candidates(logits[i : i + 1], [row], 6)[0], ranked[i])
        assert together[i].id == ranked[i, 0] and len(set(ranked[i].tolist())) == 6


@pytest.mark.parametrize("temperature", [0.2, 0.7, 1.0, 1.5, 10.0])
@pytest.mark.parametrize("count", [1, 7, 100])
def test_the_pruned_race_equals_the_plain_one(temperature, count):
    logits = random_logits(4, 20_000, 3, torch.float64)
    logits[0, 7] += 15
    logits[1, :] = 0.5
    logits[2, 100:] = -math.inf
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    seeds = torch.tensor([1, -5, 99, 2**62])
    positions = torch.tensor([0, 10, 2**20, 3])
    assert torch.equal(full_race(scaled, seeds, positions, count), plain_race(scaled, seeds, positions, count))
    some = [0, 1, 3]
    pruned = full_race(scaled[some], seeds[some], positions[some], count)
    assert torch.equal(pruned, plain_race(scaled[some], seeds[some], positions[some], count))


def ids_kept(logits: list[float], params: SamplingParams) -> set[int]:
    count = 600
    rows = [DrawRow(params, position, TokenHistory(())) for position in range(count)]
    return set(top_candidates(torch.tensor(logits, dtype=torch.float64).expand(count, -1), rows, 1)[:, 0].tolist())


LOG_PROBS = [math.log(p) for p in (0.125, 0.5, 0.25, 0.125)]


def test_filters_keep_the_hand_computed_sets():
    assert ids_kept(LOG_PROBS, SamplingParams()) == {0, 1, 2, 3}
    assert ids_kept(LOG_PROBS, SamplingParams(top_k=2)) == {1, 2}
    assert ids_kept(LOG_PROBS, SamplingParams(top_k=9)) == {0, 1, 2, 3}
    assert ids_kept(LOG_PROBS, SamplingParams(top_p=0.5)) == {1}
    assert ids_kept(LOG_PROBS, SamplingParams(top_p=0.51)) == {1, 2}
    assert ids_kept(LOG_PROBS, SamplingParams(top_p=0.75)) == {1, 2}
    assert ids_kept(LOG_PROBS, SamplingParams(min_p=0.4)) == {1, 2}
    assert ids_kept(LOG_PROBS, SamplingParams(min_p=1.0)) == {1}


def test_equal_logits_at_the_border_of_a_filter_go_to_the_lower_id():
    assert ids_kept(LOG_PROBS, SamplingParams(top_k=3)) == {0, 1, 2}
    assert ids_kept(LOG_PROBS, SamplingParams(top_p=0.8)) == {0, 1, 2}


def test_top_p_counts_the_mass_that_top_k_left():
    # Of the two tokens that top_k keeps, the first holds 2/3.
    assert ids_kept(LOG_PROBS, SamplingParams(top_k=2, top_p=0.66)) == {1}
    assert ids_kept(LOG_PROBS, SamplingParams(top_k=2, top_p=0.67)) == {1, 2}


@pytest.mark.parametrize("params", [SamplingParams(top_k=700), SamplingParams(top_p=0.999), SamplingParams(min_p=1e-9)])
def test_filters_that_keep_many_of_a_large_vocabulary_are_exact(params):
    logits = random_logits(1, 6000, 8, torch.float64)[0]
    row = DrawRow(params, 3, TokenHistory(()))
    adjusted = logits.tolist()
    for position in range(20):
        row = DrawRow(params, position, TokenHistory(()))
        assert draw(logits[None], [row])[0].id == coupled_token(adjusted, params, position)


def test_greedy_ties_go_to_the_lowest_id():
    logits = torch.zeros(1, 5000)
    logits[0, [4000, 17, 900]] = 2.0
    assert draw(logits, [DrawRow(SamplingParams(temperature=0.0), 0, TokenHistory(()))])[0].id == 17
    ranked = top_candidates(logits, [DrawRow(SamplingParams(temperature=0.0), 0, TokenHistory(()))], 5)
    assert ranked.tolist() == [[17, 900, 4000, 0, 1]]


def test_vanishing_temperature_is_the_argmax():
    logits = random_logits(1, 300, 5, torch.float64)
    row = DrawRow(SamplingParams(temperature=5e-324), 0, TokenHistory(()))
    assert draw(logits, [row])[0].id == int(logits.argmax())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_forbidden_ids_are_never_drawn(temperature):
    logits = torch.tensor([[9.0, 8.0, 0.0, 0.0]])
    rules = StopRules(eos_ids=frozenset({0}), stop_ids=frozenset({1}), min_tokens=3)
    history = TokenHistory([1, 2], [2])
    params = SamplingParams(temperature=temperature)
    rows = block_rows(params, history, (3, 3), rules)
    drawn = draw(logits.expand(3, -1), rows)
    assert [row.position for row in rows] == [3, 4, 5]
    assert [bool(row.forbidden) for row in rows] == [True, True, False]
    assert {drawn[0].id, drawn[1].id} <= {2, 3}
    assert drawn[2].id in (0, 1)


def test_penalties_see_the_proposal_tokens_before_a_position_in_the_block():
    logits = torch.tensor([[1.0, 1.5, 0.0]]).expand(3, -1)
    params = SamplingParams(temperature=0.0, frequency_penalty=0.4)
    assert [d.id for d in draw(logits, block_rows(params, TokenHistory([2]), (1, 1)))] == [1, 1, 0]
    repeated = SamplingParams(temperature=0.0, repetition_penalty=2.0)
    assert [d.id for d in draw(logits, block_rows(repeated, TokenHistory([2]), (1, 0)))] == [1, 0, 1]


@settings(deadline=None)
@given(
    params=params_strategy,
    prompt=st.lists(token_ids, min_size=1, max_size=6),
    output=st.lists(token_ids, max_size=6),
    block=st.lists(token_ids, max_size=6),
    seed=st.integers(0, 1000),
)
def test_a_block_draws_bitwise_what_one_token_at_a_time_draws(params, prompt, output, block, seed):
    for dtype in (torch.float64, torch.float32):
        logits = random_logits(len(block) + 1, VOCAB, seed, dtype)
        drawn = draw(logits, block_rows(params, TokenHistory(prompt, output), block))
        history = TokenHistory(prompt, output)
        for j, one in enumerate(drawn):
            assert draw(logits[j : j + 1], block_rows(params, history, ())) == [one]
            history.extend(block[j : j + 1])


def test_the_prompt_counts_for_repetition_only():
    logits = torch.tensor([[2.0, 1.5, -1.0]])
    history = TokenHistory([0])
    assert draw(logits, [row_after(SamplingParams(temperature=0.0, repetition_penalty=2.0), history)])[0].id == 1
    both = SamplingParams(temperature=0.0, presence_penalty=2.0, frequency_penalty=2.0)
    assert draw(logits, [row_after(both, history)])[0].id == 0
    history.extend([0])
    assert draw(logits, [row_after(both, history)])[0].id == 1


def test_logprobs_are_those_of_the_raw_logits():
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0]])
    params = SamplingParams(temperature=0.0, logit_bias=((2, 50.0),), logprobs=3)
    drawn = draw(logits, [row_after(params, TokenHistory([0]))])[0]
    law = logits[0].double().log_softmax(0).tolist()
    assert drawn.id == 2 and drawn.rank == 3
    assert drawn.logprob == pytest.approx(law[2], abs=1e-12)
    assert [token for token, _ in drawn.top] == [1, 3, 2]
    assert [value for _, value in drawn.top] == pytest.approx([law[1], law[3], law[2]], abs=1e-12)


def test_zero_logprobs_give_the_chosen_token_only_and_none_give_nothing():
    logits = torch.tensor([[0.0, 1.0]]).expand(2, -1)
    history = TokenHistory([0])
    asked = row_after(SamplingParams(temperature=0.0, logprobs=0), history)
    chosen, silent = draw(logits, [asked, row_after(SamplingParams(temperature=0.0), history)])
    assert chosen.rank == 1 and chosen.logprob is not None and chosen.top == ()
    assert silent.rank is None and silent.logprob is None


def test_candidates_beyond_the_filter_follow_in_unfiltered_order():
    logits = random_logits(1, VOCAB, 2, torch.float64)
    history = TokenHistory([0])
    free = top_candidates(logits, [row_after(SamplingParams(seed=4), history)], VOCAB)[0].tolist()
    narrow = top_candidates(logits, [row_after(SamplingParams(seed=4, top_k=2), history)], 6)[0].tolist()
    allowed = set(logits[0].topk(2).indices.tolist())
    assert set(narrow[:2]) == allowed
    assert narrow[2:] == [token for token in free if token not in allowed][:4]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_logits_are_refused_with_their_row(bad, temperature):
    logits = torch.zeros(3, 10)
    logits[1, 4] = bad
    row = row_after(SamplingParams(temperature=temperature), TokenHistory([0]))
    with pytest.raises(ValueError, match="row 1"):
        draw(logits, [row] * 3)


def test_counts_that_do_not_fit_are_refused():
    row = row_after(SamplingParams(), TokenHistory([0]))
    with pytest.raises(ValueError, match="2 rows"):
        draw(torch.zeros(3, 10), [row, row])
    with pytest.raises(ValueError, match="count"):
        top_candidates(torch.zeros(1, 10), [row], 11)


def test_an_empty_batch_draws_nothing():
    assert draw(torch.zeros(0, 10), []) == []
