"""The closed forms give the published numbers and behave at their edges."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd.speculation import theory

shares = st.floats(0.0, 1.0)
times = st.floats(0.0, 3.0)


def test_tokens_per_round():
    assert round(theory.expected_tokens(0.8, 6), 3) == 3.951
    assert round(theory.expected_tokens(0.85, 7), 3) == 4.850
    assert theory.expected_tokens(0.0, 5) == 1.0
    assert theory.expected_tokens(1.0, 5) == 6.0
    assert theory.expected_tokens(0.5, 0) == 1.0


@given(a=shares, k=st.integers(0, 12))
def test_tokens_per_round_are_the_sum_over_the_outcomes(a, k):
    by_outcome = sum((j + 1) * a**j * (1 - a) for j in range(k)) + (k + 1) * a**k
    assert theory.expected_tokens(a, k) == pytest.approx(by_outcome, rel=1e-9)


def test_the_published_speed():
    assert round(theory.ssd_speedup(0.85, 4.6, 3.2, 0.8, 0.45), 4) == 4.1124


def test_the_published_crossover():
    assert round(theory.fallback_crossover(0.85, 4.4, 4.4, 1.0, 0.3, 0.0), 3) == 3.535


@given(h=st.floats(0.05, 0.95), hit=st.floats(2, 6), slow=st.floats(1, 6), t_slow=times, t_primary=times)
def test_the_fast_fallback_wins_exactly_beyond_the_crossover(h, hit, slow, t_slow, t_primary):
    crossover = theory.fallback_crossover(h, hit, slow, 1.0, t_slow, 0.0, t_primary)
    for batch in (1, 2, 3, 5, 8, 13):
        by_slow = theory.ssd_speedup(h, hit, slow, t_primary, t_slow, batch)
        by_fast = theory.ssd_speedup(h, hit, 1.0, t_primary, 0.0, batch)
        if batch > crossover * (1 + 1e-6) + 1e-6:
            assert by_fast >= by_slow * (1 - 1e-9)
        elif batch < crossover * (1 - 1e-6) - 1e-6:
            assert by_fast <= by_slow * (1 + 1e-9)


def test_crossovers_at_the_edges():
    assert theory.fallback_crossover(1.0, 4, 4, 1, 0.3, 0.0) == math.inf
    assert theory.fallback_crossover(0.5, 4, 4, 1, 0.0, 0.0) == math.inf
    assert theory.fallback_crossover(0.5, 4, 1, 2, 0.5, 0.0) == 0.0
    assert theory.fallback_crossover(0.0, 4, 1.2, 1, 5.0, 0.0) == 0.0


@given(h=shares, hit=st.floats(1, 8), miss=st.floats(1, 8), t_primary=times, t_fallback=times)
def test_a_fallback_per_row_never_loses_to_one_for_all_that_takes_no_less(h, hit, miss, t_primary, t_fallback):
    per_row = theory.per_row_speedup(h, hit, miss, t_primary)
    batched = theory.ssd_speedup(h, hit, miss, t_primary, max(t_fallback, t_primary - 1.0), 64)
    assert per_row >= batched * (1 - 1e-9)


def test_without_drafting_time_speculation_gives_its_tokens():
    assert theory.sd_speedup(3.5, 0.0) == 3.5
    assert theory.sd_speedup(3.0, 0.5) == 2.0
    assert theory.per_row_speedup(1.0, 3.5, 1.0, 0.9) == 3.5


@given(t_primary=times, round_trip=st.floats(1e-3, 2.0))
def test_pushing_wins_exactly_when_the_table_hides_behind_the_verification(t_primary, round_trip):
    push, ask = theory.push_round(t_primary, round_trip), theory.ask_round(t_primary, round_trip)
    assert (push < ask) == theory.pushing_wins(t_primary) or push == pytest.approx(ask)


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan])
def test_shares_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        theory.expected_tokens(bad, 3)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        theory.ssd_speedup(bad, 4, 3, 1, 1)
