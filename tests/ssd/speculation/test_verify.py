"""Verification, fan-out and the choice of branches."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_the_parts_that_the_router_uses_do_not_import_torch():
    names = ["branching", "cache", "fan_out", "finish", "outcomes", "params", "proposal", "verify"]
    imports = "; ".join(f"import ssd.speculation.{name}" for name in names)
    code = f"{imports}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
