"""Which outcomes are prepared for, alone and shared out among several drafts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd.speculation.branching import candidate_lists, candidates_needed, plan_branches

RANKED = [[5, 1, 2], [8, 6, 3], [7, 4, 9]]


def test_branches_leave_out_the_token_that_would_have_been_accepted() -> None:
    expected = [(0, 1, 1), (0, 2, 2), (1, 8, 1), (1, 3, 2), (2, 7, 1), (2, 4, 2)]
    assert plan_branches(RANKED, (5, 6), (2, 2, 2)) == expected
    assert plan_branches(RANKED, (5, 6), (0, 1, 0)) == [(1, 8, 1)]
    assert candidate_lists(RANKED, (5, 6)) == [(1, 2), (8, 3), (7, 4, 9)]


def test_the_first_round_anticipates_first_tokens() -> None:
    assert plan_branches([[4, 2, 9]], (), (3,)) == [(0, 4, 1), (0, 2, 2), (0, 9, 3)]


def test_a_part_takes_every_partsth_candidate() -> None:
    ranked = [list(range(10, 20))]
    assert plan_branches(ranked, (), (3,), 1, 3) == [(0, 11, 2), (0, 14, 5), (0, 17, 8)]


def test_wrong_numbers_of_lists_and_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="2 tokens needs"):
        plan_branches([[1]], (5, 6), (1,))
    with pytest.raises(ValueError, match="1 lists need as many numbers"):
        plan_branches([[1]], (), (1, 1))
    with pytest.raises(ValueError, match="part 2 of 2"):
        plan_branches([[1]], (), (1,), 2, 2)


@given(data=st.data(), depth=st.integers(0, 5), parts=st.integers(1, 4))
def test_parts_partition_the_candidates_and_fill_their_allocations(data: st.DataObject, depth: int, parts: int) -> None:
    allocation = data.draw(st.lists(st.integers(0, 5), min_size=depth + 1, max_size=depth + 1))
    need = candidates_needed(allocation, parts - 1, parts)
    ranked = [data.draw(st.permutations(range(24)))[:need] for _ in range(depth + 1)]
    proposal = data.draw(st.lists(st.integers(0, 23), min_size=depth, max_size=depth))
    shares = [plan_branches(ranked, proposal, allocation, part, parts) for part in range(parts)]
    assert all(len(share) == sum(allocation) for share in shares)
    assert all(need >= candidates_needed(allocation, part, parts) for part in range(parts))
    together = sorted((one for share in shares for one in share), key=lambda one: (one.accepted, one.rank))
    assert together == plan_branches(ranked, proposal, [count * parts for count in allocation])
    assert all(k == depth or token != proposal[k] for k, token, _ in together)
