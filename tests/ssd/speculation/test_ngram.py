"""Prompt lookup equals the search through the whole text that it replaces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd.speculation.ngram import NGramIndex
from ssd.speculation.proposal import Proposal

texts = st.lists(st.integers(0, 3), max_size=30)


def naive_match(ids: list[int], max_n: int, min_n: int) -> tuple[int, int] | None:
    """(n, start of the continuation) of the longest n-gram at the end that stood before, at its last place."""
    for n in range(max_n, min_n - 1, -1):
        if n > len(ids):
            continue
        places = [i + n for i in range(len(ids) - n) if ids[i : i + n] == ids[-n:]]
        if places:
            return n, places[-1]
    return None


def naive_proposal(ids: list[int], count: int, max_n: int, min_n: int) -> tuple[int, ...] | None:
    match = naive_match(ids, max_n, min_n)
    if match is None or count < 1:
        return None
    text = list(ids)
    for place in range(match[1], match[1] + count):
        text.append(text[place])
    return tuple(text[len(ids) :])


@given(ids=texts, count=st.integers(-1, 9), max_n=st.integers(1, 5), min_n=st.integers(1, 5))
def test_a_proposal_is_what_a_search_through_the_text_finds(ids, count, max_n, min_n):
    min_n = min(min_n, max_n)
    index = NGramIndex(ids, max_n=max_n, min_n=min_n)
    proposal = index.propose(count)
    assert (proposal.ids if proposal else None) == naive_proposal(ids, count, max_n, min_n)
    assert proposal is None or proposal.base_len == len(index) == len(ids)
    match = naive_match(ids, max_n, min_n)
    assert index.matched == (match[0] if match else 0)


@given(parts=st.lists(texts, max_size=6))
def test_committing_in_parts_is_committing_at_once(parts):
    index = NGramIndex()
    for part in parts:
        index.extend(part)
        index.propose(4)
    assert index.propose(7) == NGramIndex([token for part in parts for token in part]).propose(7)


def test_the_longest_match_wins_over_a_later_shorter_one():
    assert NGramIndex([1, 2, 3, 9, 5, 3, 8, 1, 2, 3]).propose(2) == Proposal(10, (9, 5))


def test_the_last_of_equal_matches_is_followed():
    assert NGramIndex([1, 2, 7, 1, 2, 8, 1, 2]).propose(1) == Proposal(8, (8,))


def test_a_loop_is_followed_round():
    assert NGramIndex([5, 5]).propose(4) == Proposal(2, (5, 5, 5, 5))
    assert NGramIndex([1, 2, 3, 1, 2, 3]).propose(7) == Proposal(6, (1, 2, 3, 1, 2, 3, 1))


def test_a_new_end_or_an_empty_text_gives_nothing():
    assert NGramIndex().propose(3) is None
    assert NGramIndex([4]).propose(3) is None
    assert NGramIndex([1, 2, 3]).propose(3) is None
    assert NGramIndex([1, 2, 1], min_n=2).propose(3) is None


@pytest.mark.parametrize(("max_n", "min_n"), [(0, 0), (2, 3), (3, 0)])
def test_impossible_sizes_are_refused(max_n, min_n):
    with pytest.raises(ValueError, match="min_n"):
        NGramIndex(max_n=max_n, min_n=min_n)
