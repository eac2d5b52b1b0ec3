"""Ids are compared with the first answer to the same request, and a difference is placed."""

import pytest

from bench.run.cases import Case
from bench.run.identity import Identity, first_difference
from tests.bench.run.answers import answer

AR, SD = Case(1, 0.0, "ar"), Case(1, 0.0, "sd", 2)


def test_equal_answers_are_counted_and_temperatures_kept_apart():
    identity = Identity()
    identity.take(AR, [answer([1, 2]), answer([3])])
    identity.take(SD, [answer([1, 2]), answer([3])])
    identity.take(Case(1, 0.8, "ar"), [answer([9]), answer([8])])
    assert (identity.compared, identity.equal, identity.differences) == (2, 2, [])


def test_the_first_difference_of_a_case_is_placed():
    identity = Identity()
    identity.take(AR, [answer([1, 2, 3]), answer([4, 5])])
    for _ in range(2):
        identity.take(SD, [answer([1, 2, 3]), answer([4, 6])])
    (one,) = identity.differences
    assert (one.case, one.number, one.position, one.expected, one.found) == (SD, 1, 1, 5, 6)
    assert (identity.compared, identity.equal) == (4, 2)
    assert identity.before(one) == [4]
    assert "SD K=2 (T=0, batch 1): request 1, token 1 is 6, 5 in AR (batch 1)" in one.text()


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1, 2], [1], 1), ([], [1], 0), ([], [], None)],
)
def test_a_missing_token_is_a_difference_too(one, other, place):
    assert first_difference(one, other) == place
