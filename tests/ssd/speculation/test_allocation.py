"""Budgets are shared out as Theorem 12 says, in whole numbers as no other sharing could better."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd.speculation.allocation import (
    geometric_miss_rate,
    greedy_allocation,
    outcome_law,
    power_law,
    theorem12,
    uniform_miss_rate,
)
from ssd.speculation.fan_out import BudgetUniform, ExplicitFanOut, GeometricFanOut, MeasuredFanOut, UniformFanOut
from ssd.speculation.ranks import AcceptanceStatistics

VECTORS = [
    ((0.8, 7, 24, 1.0), [3.897, 3.486, 3.118, 2.789, 2.494, 2.231, 1.995, 3.991], 0.31605, 0.33333),
    ((0.7, 5, 20, 0.5), [5.043, 3.976, 3.134, 2.471, 1.948, 3.427], 0.52979, 0.54772),
    ((0.9, 6, 21, 0.8), [2.714, 2.559, 2.414, 2.277, 2.147, 2.025, 6.864], 0.34819, 0.41524),
]


@pytest.mark.parametrize(("case", "fan_outs", "geometric", "uniform"), VECTORS)
def test_the_published_shares_and_miss_rates(case, fan_outs, geometric, uniform):
    a, k, budget, r = case
    assert [round(f, 3) for f in theorem12(a, k, budget, r)] == fan_outs
    assert round(geometric_miss_rate(a, k, budget, r), 5) == geometric
    assert round(uniform_miss_rate(k, budget, r), 5) == uniform


@pytest.mark.parametrize(
    ("a", "k", "budget", "expected"),
    [(0.8, 3, 10, (2, 2, 2, 4)), (0.6, 4, 12, (4, 3, 2, 1, 2)), (0.9, 3, 9, (1, 1, 1, 6))],
)
def test_the_published_whole_numbers(a, k, budget, expected):
    assert GeometricFanOut(a, 0.8, budget).allocate(k) == expected
    assert greedy_allocation(outcome_law([a] * k), power_law(0.8), budget) == expected


@given(
    a=st.floats(0.05, 0.95),
    k=st.integers(1, 6),
    budget=st.floats(1, 60),
    r=st.floats(0.2, 2),
    moved=st.floats(0.01, 0.5),
    data=st.data(),
)
def test_no_real_valued_sharing_misses_less_than_theorem_12(a, k, budget, r, moved, data):
    best = list(theorem12(a, k, budget, r))
    assert sum(best) == pytest.approx(budget)
    law = outcome_law([a] * k)
    source, goal = data.draw(st.permutations(range(k + 1)))[:2]
    other = list(best)
    other[source], other[goal] = best[source] * (1 - moved), best[goal] + best[source] * moved
    assert geometric_miss_rate(a, k, budget, r) <= sum(p * f**-r for p, f in zip(law, other, strict=True)) + 1e-12
    assert geometric_miss_rate(a, k, budget, r) <= uniform_miss_rate(k, budget, r) + 1e-12


@settings(deadline=None, max_examples=60)
@given(data=st.data(), k=st.integers(0, 3), budget=st.integers(0, 7))
def test_greedy_is_optimal_for_concave_coverage(data, k, budget):
    law = outcome_law(data.draw(st.lists(st.floats(0, 1), min_size=k, max_size=k)))
    steps = [sorted(data.draw(st.lists(st.floats(0, 0.1), min_size=9, max_size=9)), reverse=True) for _ in law]

    def coverage(j, f):
        return math.fsum(steps[j][:f])

    def hit_rate(fan_outs):
        return sum(p * coverage(j, f) for j, (p, f) in enumerate(zip(law, fan_outs, strict=True)))

    found = greedy_allocation(law, coverage, budget)
    assert sum(found) == budget and len(found) == k + 1
    every = (one for one in itertools.product(range(budget + 1), repeat=k + 1) if sum(one) == budget)
    assert hit_rate(found) >= max(map(hit_rate, every)) - 1e-12


@given(acceptances=st.lists(st.floats(0, 1), max_size=10))
def test_outcome_laws_are_laws(acceptances):
    law = outcome_law(acceptances)
    assert len(law) == len(acceptances) + 1
    assert sum(law) == pytest.approx(1.0) and min(law) >= 0


RULES = [
    UniformFanOut(3, 6),
    BudgetUniform(21),
    ExplicitFanOut((4, 3, 2, 5), (7, 1)),
    GeometricFanOut(0.7, 0.8, 21),
    MeasuredFanOut(AcceptanceStatistics(), 21),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("after_hit", [True, False])
def test_every_rule_gives_one_number_for_each_acceptance_length(rule, after_hit):
    for depth in range(12):
        fan_outs = rule.allocate(depth, after_hit)
        assert len(fan_outs) == depth + 1 and min(fan_outs) >= 0
    assert rule.allocate(4) == rule.allocate(4, True)
    with pytest.raises(ValueError, match="negative"):
        rule.allocate(-1)


@pytest.mark.parametrize("rule", RULES[1:2] + RULES[3:], ids=lambda rule: type(rule).__name__)
@given(depth=st.integers(0, 12))
def test_budgets_are_spent_in_full(rule, depth):
    assert sum(rule.allocate(depth)) == 21


def test_with_nothing_in_flight_the_whole_budget_goes_to_the_first_token():
    assert GeometricFanOut(0.7, 0.8, 21).allocate(0) == (21,)
    assert MeasuredFanOut(AcceptanceStatistics(), 21).allocate(0, False) == (21,)
    assert ExplicitFanOut((4, 3, 2, 5), (7, 1)).allocate(0, True) == (14,)
    assert ExplicitFanOut((4, 3, 2, 5), (7, 1)).allocate(0, False) == (8,)


def test_explicit_lists_are_taken_as_they_are_and_cut_or_padded_before_the_last():
    rule = ExplicitFanOut((4, 3, 2, 5), (7, 1))
    assert rule.allocate(3) == (4, 3, 2, 5)
    assert rule.allocate(1) == (4, 5)
    assert rule.allocate(5) == (4, 3, 2, 0, 0, 5)
    assert rule.allocate(1, after_hit=False) == (7, 1)
    assert ExplicitFanOut((4, 5)).allocate(1, after_hit=False) == (4, 5)


def test_measured_fan_out_follows_what_is_seen():
    statistics = AcceptanceStatistics()
    rule = MeasuredFanOut(statistics, 12)
    believed = rule.allocate(4)
    for _ in range(300):
        statistics.observe(0, 4, 3)
    early = rule.allocate(4)
    # All mass at k = 0, and never beyond rank 3.
    assert early[0] > believed[0] and early[0] >= 3
    for _ in range(2000):
        statistics.observe(4, 4, 1)
    late = rule.allocate(4)
    assert late[4] > early[4] and late[0] < early[0]
    assert rule.allocate(4) is late


def test_measured_is_at_least_as_good_as_geometric_and_uniform_by_its_own_measure():
    statistics = AcceptanceStatistics()
    for i in range(2000):
        statistics.observe(i % 5, 4, 1 + (i * i) % (3 + 2 * (i % 5)))
    rates = [
        statistics.hit_rate(rule.allocate(4))
        for rule in (MeasuredFanOut(statistics, 20), GeometricFanOut(0.7, 0.8, 20), BudgetUniform(20))
    ]
    assert rates[0] == max(rates)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ExplicitFanOut(()),
        lambda: ExplicitFanOut((1, -1)),
        lambda: ExplicitFanOut((1,), (-1,)),
        lambda: GeometricFanOut(1.2, 0.8, 3),
        lambda: GeometricFanOut(0.5, 0.0, 3),
        lambda: GeometricFanOut(0.5, 0.8, -3),
        lambda: MeasuredFanOut(AcceptanceStatistics(), -1),
        lambda: greedy_allocation((), power_law(1), 3),
        lambda: greedy_allocation((1.0,), power_law(1), -1),
        lambda: theorem12(1.0, 3, 10, 1),
        lambda: theorem12(0.5, -1, 10, 1),
        lambda: theorem12(0.5, 3, 0, 1),
        lambda: uniform_miss_rate(3, 10, 0),
    ],
)
def test_values_out_of_range_are_refused(make):
    with pytest.raises(ValueError, match="must|needs|cannot"):
        make()


def test_everything_but_the_laws_of_tokens_is_free_of_torch():
    names = ["allocation", "fan_out", "governor", "ngram", "prediction", "ranks", "step_time", "theory"]
    imports = "; ".join(f"import ssd.speculation.{name}" for name in names)
    code = f"{imports}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
