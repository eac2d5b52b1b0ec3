"""Step times are learnt from any mixture of steps, stay plausible where nothing was seen, and shrug off pauses."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd.speculation.step_time import StepTime, StepTimeFit, nonnegative_solution

PRIOR = StepTime(0.010, 1e-5, 2e-5)
TRUE = StepTime(0.025, 1e-4, 6e-5)


def learnt(true, steps, *, prior=PRIOR, noise=0.03, seed=1, fit=None):
    source = random.Random(seed)
    fit = fit or StepTimeFit(prior)
    for rows, tokens in steps:
        fit.observe(rows, tokens, true(rows, tokens) * (1 + noise * source.uniform(-1, 1)))
    return fit


def mixed_steps(count, seed=2):
    source = random.Random(seed)
    return [(rows, rows * source.randint(1, 8)) for rows in (source.randint(1, 32) for _ in range(count))]


def test_a_linear_law_is_found_from_noisy_steps():
    fit = learnt(TRUE, mixed_steps(400))
    for rows, tokens in [(1, 1), (1, 8), (16, 16), (32, 256), (64, 64)]:
        assert fit.model(rows, tokens) == pytest.approx(TRUE(rows, tokens), rel=0.03)


def test_a_roofline_is_found_from_steps_on_both_sides_of_its_knee():
    def roofline(rows, tokens):
        return max(0.02, 0.02 * tokens / 200) + 1e-4 * rows

    fit = learnt(roofline, [(rows, rows * (k + 1)) for rows in (1, 8, 32, 64, 128) for k in (0, 3, 6)] * 20)
    for rows, tokens in [(1, 1), (32, 128), (64, 448), (128, 128), (128, 896)]:
        assert fit.model(rows, tokens) == pytest.approx(roofline(rows, tokens), rel=0.15)


def test_one_kind_of_step_corrects_the_scale_and_keeps_the_believed_shape():
    fit = learnt(lambda rows, tokens: 10 * PRIOR(rows, tokens), [(4, 20)] * 60)
    assert fit.model(4, 20) == pytest.approx(10 * PRIOR(4, 20), rel=0.03)
    assert 9 * PRIOR(1, 1) < fit.model(1, 1) <= fit.model(4, 20)


def test_pauses_do_not_move_the_fit():
    fit = learnt(TRUE, mixed_steps(200))
    before = fit.model(8, 40)
    for _ in range(3):
        fit.observe(8, 40, 50 * TRUE(8, 40))
        learnt(TRUE, mixed_steps(20), fit=fit)
    assert fit.model(8, 40) == pytest.approx(before, rel=0.05)


def test_one_absurd_first_step_is_not_believed_and_several_are():
    """In a process that has just begun, kernels may be compiled in the middle of a step."""
    fit = StepTimeFit(PRIOR)
    fit.observe(8, 40, 100 * TRUE(8, 40))
    learnt(TRUE, mixed_steps(20), fit=fit)
    assert fit.model(8, 40) == pytest.approx(TRUE(8, 40), rel=0.1)
    slow = StepTimeFit(PRIOR)
    for _ in range(20):
        slow.observe(8, 40, 100 * TRUE(8, 40))
    assert slow.model(8, 40) == pytest.approx(100 * TRUE(8, 40), rel=0.15)


@pytest.mark.parametrize("factor", [0.1, 0.5, 3.0, 10.0])
def test_a_lasting_change_is_believed(factor):
    fit = learnt(TRUE, mixed_steps(200))
    learnt(lambda rows, tokens: factor * TRUE(rows, tokens), mixed_steps(600, seed=5), fit=fit)
    assert fit.model(8, 40) == pytest.approx(factor * TRUE(8, 40), rel=0.15)


def test_before_any_step_the_prior_answers():
    fit = StepTimeFit(PRIOR)
    assert fit.model(3, 7) == PRIOR(3, 7)
    assert fit.observations == 0.0


@given(
    steps=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 2000), st.floats(1e-5, 10.0)), max_size=30),
    rows=st.integers(1, 100),
    tokens=st.integers(1, 3000),
)
def test_whatever_was_seen_times_are_positive_and_rise(steps, rows, tokens):
    fit = StepTimeFit(PRIOR)
    for one in steps:
        fit.observe(*one)
    assert 0 < fit.model(rows, tokens) <= fit.model(rows + 1, tokens + 1) < 1e4
    bends = [fit.model(rows, t) for t in (10, 110, 210, 310)]
    assert bends[1] - bends[0] <= bends[2] - bends[1] + 1e-9 <= bends[3] - bends[2] + 2e-9


@given(data=st.data(), size=st.integers(1, 5))
def test_the_non_negative_solution_meets_its_conditions(data, size):
    entry = st.floats(-3, 3)
    root = [[data.draw(entry) for _ in range(size)] for _ in range(size)]
    matrix = [[sum(line[i] * line[j] for line in root) + (i == j) * 0.1 for j in range(size)] for i in range(size)]
    answers = [data.draw(entry) for _ in range(size)]
    x = nonnegative_solution(matrix, answers)
    slopes = [answers[i] - sum(matrix[i][j] * x[j] for j in range(size)) for i in range(size)]
    assert all(value >= 0 for value in x)
    assert all(abs(slope) < 1e-6 if value > 0 else slope < 1e-6 for value, slope in zip(x, slopes, strict=True))


@pytest.mark.parametrize("step", [(0, 1, 0.1), (1, 0, 0.1), (1, 1, 0.0), (1, 1, float("nan")), (1, 1, float("inf"))])
def test_impossible_steps_are_refused(step):
    with pytest.raises(ValueError, match="positive"):
        StepTimeFit(PRIOR).observe(*step)
