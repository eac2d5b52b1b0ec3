"""Statistics start at their prior, follow what is seen, forget, and understand lists that ended too early."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd.speculation.ranks import AcceptanceStatistics, RankHistogram, StatisticsSettings

SETTINGS = StatisticsSettings(half_life=400.0, prior_weight=10.0, acceptance=0.6, exponent=0.8, ranks=16, positions=4)

rounds = st.tuples(st.integers(0, 6), st.integers(0, 6), st.none() | st.integers(1, 40), st.none() | st.integers(0, 20))


def seen(statistics, accepted, depth, ranks):
    for rank in ranks:
        statistics.observe(accepted, depth, rank)
    return statistics


def test_before_anything_was_seen_the_power_law_and_the_prior_acceptance_answer():
    fresh = AcceptanceStatistics(SETTINGS)
    assert fresh.acceptance == pytest.approx(0.6)
    assert fresh.outcome_law(2) == pytest.approx((0.4, 0.24, 0.36))
    assert fresh.expected_tokens(2) == pytest.approx(1.96)
    for fan_out in (0, 1, 3, 16, 50):
        assert fresh.coverage(1, 5, fan_out) == pytest.approx(1 - (fan_out + 1) ** -0.8)
    # The token after full acceptance is the draft's first choice as often as a proposal token is accepted.
    assert fresh.coverage(5, 5, 1) == pytest.approx(0.6)


def test_coverage_becomes_the_observed_share():
    source = random.Random(1)
    ranks = source.choices([1, 2, 3, 7], [0.5, 0.25, 0.15, 0.1], k=4000)
    statistics = seen(AcceptanceStatistics(), 0, 3, ranks)
    for fan_out, share in ((1, 0.5), (2, 0.75), (3, 0.9), (7, 1.0)):
        assert statistics.coverage(0, 3, fan_out) == pytest.approx(share, abs=0.04)
    # Another acceptance length has learnt from it, but may differ; the bonus token has not.
    assert statistics.coverage(2, 3, 1) == pytest.approx(0.5, abs=0.05)
    assert statistics.acceptance < 0.02


def test_lists_of_any_length_tell_the_same_story():
    source = random.Random(2)
    whole, cut = AcceptanceStatistics(), AcceptanceStatistics()
    for _ in range(6000):
        rank = min(30, 1 + int(source.expovariate(0.4)))
        listed = source.choice([1, 2, 4, 8])
        whole.observe(0, 2, rank)
        cut.observe(0, 2, rank if rank <= listed else None, listed=listed)
    for fan_out in range(1, 8):
        assert cut.coverage(0, 2, fan_out) == pytest.approx(whole.coverage(0, 2, fan_out), abs=0.05)


def test_a_miss_without_a_list_teaches_acceptance_only():
    statistics = AcceptanceStatistics(SETTINGS)
    before = statistics.coverage(0, 3, 2)
    statistics.observe(0, 3)
    assert statistics.coverage(0, 3, 2) == before and statistics.acceptance < 0.6


def test_old_observations_fade():
    statistics = seen(AcceptanceStatistics(SETTINGS), 0, 2, list(range(1, 17)) * 125)
    assert statistics.coverage(0, 2, 3) < 0.25
    seen(statistics, 0, 2, [1] * 2000)
    assert statistics.coverage(0, 2, 1) > 0.9


def test_acceptance_is_known_by_position():
    statistics = AcceptanceStatistics()
    source = random.Random(3)
    for _ in range(3000):
        accepted = 0
        while accepted < 4 and source.random() < (0.9, 0.8, 0.5, 0.2)[accepted]:
            accepted += 1
        statistics.observe(accepted, 4, 1)
    assert [statistics.acceptance_at(j) for j in range(4)] == pytest.approx([0.9, 0.8, 0.5, 0.2], abs=0.05)
    assert sum(statistics.outcome_law(4)) == pytest.approx(1.0)


def test_rounds_after_misses_are_kept_apart_when_they_differ():
    statistics = AcceptanceStatistics()
    for _ in range(500):
        statistics.observe(3, 3, 1, after_hit=True)
        statistics.observe(0, 3, 1, after_hit=False)
    assert statistics.acceptance_at(0) > 0.9 > 0.1 > statistics.acceptance_at(0, after_hit=False)
    assert statistics.expected_tokens(3) > statistics.expected_tokens(3, after_hit=False)


def test_a_new_sequence_starts_where_its_workload_is_and_then_goes_its_own_way():
    workload = seen(AcceptanceStatistics(), 3, 3, [1] * 300)
    mine = AcceptanceStatistics(parent=workload)
    assert mine.acceptance == pytest.approx(workload.acceptance)
    assert mine.coverage(3, 3, 1) == pytest.approx(workload.coverage(3, 3, 1))
    seen(mine, 0, 3, [2] * 60)
    other = AcceptanceStatistics(parent=workload)
    assert mine.acceptance_at(0) < 0.4 < other.acceptance_at(0)
    assert workload.acceptance_at(0) < 0.99  # it has learnt from its child


@given(observed=st.lists(rounds, max_size=60), weight=st.floats(0.1, 50))
def test_coverage_rises_concavely_from_0_to_at_most_1(observed, weight):
    statistics = AcceptanceStatistics(StatisticsSettings(prior_weight=weight, ranks=12, positions=3, half_life=20))
    for accepted, depth, rank, listed in observed:
        statistics.observe(min(accepted, depth), depth, rank, listed=listed)
    for k, depth in ((0, 4), (2, 4), (3, 4), (4, 4), (0, 0)):
        values = [statistics.coverage(k, depth, f) for f in range(30)]
        assert values[0] == 0.0 and values[-1] <= 1.0
        steps = [high - low for low, high in zip(values, values[1:], strict=False)]
        assert min(steps) >= -1e-9
        assert all(later <= earlier + 1e-9 for earlier, later in zip(steps[:11], steps[1:12], strict=True))
    assert all(0 < statistics.acceptance_at(j) < 1 for j in range(6))


def test_hit_rate_weighs_coverage_by_the_outcomes():
    statistics = AcceptanceStatistics(SETTINGS)
    law = statistics.outcome_law(2)
    expected = sum(p * statistics.coverage(k, 2, f) for k, (p, f) in enumerate(zip(law, (3, 1, 5), strict=True)))
    assert statistics.hit_rate((3, 1, 5)) == pytest.approx(expected)


def test_snapshots_show_what_is_believed():
    statistics = seen(AcceptanceStatistics(SETTINGS), 2, 3, [1, 1, 2])
    shown = statistics.snapshot(positions=3, ranks=4)
    assert shown.rounds == pytest.approx(3, abs=0.1)
    assert shown.acceptance == statistics.acceptance
    assert len(shown.after_hit) == len(shown.after_miss) == len(shown.rejected) == 3
    assert shown.rejected[2][2] == statistics.coverage(2, 3, 2)
    assert shown.bonus[1] == statistics.coverage(3, 3, 1)


def test_the_version_changes_with_every_observation_anywhere():
    parent = AcceptanceStatistics(SETTINGS)
    child = AcceptanceStatistics(parent=parent)
    versions = [child.version]
    child.observe(1, 2, 1)
    versions.append(child.version)
    parent.observe(1, 2, 1)
    versions.append(child.version)
    assert len(set(versions)) == 3


def test_a_million_half_lives_do_not_overflow():
    histogram = RankHistogram(StatisticsSettings(half_life=0.05, ranks=4))
    for rank in [1, 2, 3, 9] * 500:
        histogram.observe(rank)
    assert histogram.coverages([0, 0.4, 0.6, 0.7, 0.8])[-1] <= 1.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: AcceptanceStatistics().observe(3, 2),
        lambda: AcceptanceStatistics().observe(-1, 2),
        lambda: AcceptanceStatistics().observe(1, 2, 0),
        lambda: AcceptanceStatistics().observe(1, 2, None, listed=-1),
        lambda: StatisticsSettings(half_life=0),
        lambda: StatisticsSettings(ranks=0),
        lambda: StatisticsSettings(acceptance=1.0),
    ],
)
def test_impossible_observations_and_settings_are_refused(make):
    with pytest.raises(ValueError, match="accepted|rank|must"):
        make()
