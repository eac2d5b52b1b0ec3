"""Verification, fan-out and the choice of branches."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd.speculation.branching import candidates_needed, plan_branches
from ssd.speculation.fan_out import BudgetUniform, UniformFanOut
from ssd.speculation.params import Draw
from ssd.speculation.verify import verify

small = st.integers(0, 3)


@given(proposal=st.lists(small, max_size=6), drawn=st.lists(small, min_size=7, max_size=7))
def test_exactly_the_longest_equal_prefix_is_accepted(proposal, drawn):
    drawn = drawn[: len(proposal) + 1]
    verdict = verify(proposal, [Draw(token) for token in drawn])
    k = verdict.accepted
    assert list(verdict.ids) == drawn[: k + 1]
    assert drawn[:k] == proposal[:k]
    assert k == len(proposal) or drawn[k] != proposal[k]


def test_an_empty_proposal_emits_the_one_draw():
    verdict = verify((), [Draw(5, -0.25, 1)])
    assert verdict.accepted == 0 and verdict.emitted == (Draw(5, -0.25, 1),)


def test_draws_that_do_not_fit_the_proposal_are_refused():
    with pytest.raises(ValueError, match="need 3 draws"):
        verify((1, 2), [Draw(1)])


def test_uniform_fan_out_gives_each_acceptance_length_the_same():
    assert UniformFanOut(3).allocate(4) == (3, 3, 3, 3, 3)
    assert UniformFanOut(3).allocate(0) == (3,)


def test_with_nothing_in_flight_the_whole_budget_goes_to_the_first_token():
    assert UniformFanOut(3, proposal_len=6).allocate(0) == (21,)
    assert BudgetUniform(21).allocate(0) == (21,)


@given(budget=st.integers(0, 200), depth=st.integers(0, 12))
def test_a_budget_is_spent_in_full_and_evenly(budget, depth):
    shares = BudgetUniform(budget).allocate(depth)
    assert len(shares) == depth + 1 and sum(shares) == budget
    assert max(shares) - min(shares) <= 1
    assert shares[-1] == max(shares)


@pytest.mark.parametrize(
    "make", [lambda: UniformFanOut(-1), lambda: BudgetUniform(-1), lambda: BudgetUniform(2).allocate(-1)]
)
def test_negative_fan_out_is_refused(make):
    with pytest.raises(ValueError, match="negative"):
        make()


def test_branches_leave_out_the_token_that_would_have_been_accepted():
    candidates = [[5, 1, 2], [8, 6, 3], [7, 4, 9]]
    assert plan_branches(candidates, (5, 6), (2, 2, 2)) == [(0, 1), (0, 2), (1, 8), (1, 3), (2, 7), (2, 4)]
    assert plan_branches(candidates, (5, 6), (0, 1, 0)) == [(1, 8)]


def test_the_first_round_anticipates_first_tokens():
    assert plan_branches([[4, 2, 9]], (), (3,)) == [(0, 4), (0, 2), (0, 9)]


def test_wrong_numbers_of_lists_are_refused():
    with pytest.raises(ValueError, match="2 tokens needs 3"):
        plan_branches([[1]], (5, 6), (1,))


@given(data=st.data(), depth=st.integers(0, 5))
def test_enough_candidates_always_fill_the_allocation(data, depth):
    allocation = data.draw(st.lists(st.integers(0, 5), min_size=depth + 1, max_size=depth + 1))
    need = candidates_needed(allocation)
    candidates = [data.draw(st.permutations(range(10)))[:need] for _ in range(depth + 1)]
    proposal = data.draw(st.lists(st.integers(0, 9), min_size=depth, max_size=depth))
    branches = plan_branches(candidates, proposal, allocation)
    assert len(branches) == len(set(branches)) == sum(allocation)
    assert all(k == depth or token != proposal[k] for k, token in branches)


def test_the_parts_that_the_router_uses_do_not_import_torch():
    names = ["branching", "cache", "fan_out", "finish", "outcomes", "params", "proposal", "verify"]
    imports = "; ".join(f"import ssd.speculation.{name}" for name in names)
    code = f"{imports}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
