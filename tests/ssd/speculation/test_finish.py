"""Ends of a sequence: a block ends exactly where one token at a time would."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd.speculation.finish import Cut, FinishReason, StopRules, cut

STOP, EOS = 7, 9


def one_at_a_time(ids: list[int], rules: StopRules) -> tuple[list[int], FinishReason | None, int | None]:
    kept: list[int] = []
    for token in ids:
        kept.append(token)
        stops = set(rules.stop_ids) | (set() if rules.ignore_eos else set(rules.eos_ids))
        if token in stops and len(kept) > rules.min_tokens:
            return kept, FinishReason.STOP, token
        if len(kept) >= rules.max_tokens or (
            rules.max_len is not None and rules.prompt_len + len(kept) >= rules.max_len
        ):
            return kept, FinishReason.LENGTH, None
    return kept, None, None


rules_strategy = st.builds(
    StopRules,
    eos_ids=st.frozensets(st.integers(8, 9)),
    stop_ids=st.frozensets(st.integers(6, 8)),
    ignore_eos=st.booleans(),
    min_tokens=st.integers(0, 12),
    max_tokens=st.integers(1, 25),
    max_len=st.none() | st.integers(5, 30),
    prompt_len=st.integers(1, 4),
)


@settings(max_examples=1000)
@given(
    ids=st.lists(st.integers(0, 9), max_size=40),
    rules=rules_strategy,
    blocks=st.lists(st.integers(1, 9), min_size=40, max_size=40),
)
def test_blocks_of_any_size_end_where_one_token_at_a_time_ends(ids, rules, blocks):
    kept: list[int] = []
    reason, stop_id = None, None
    offset = 0
    for size in blocks:
        block = ids[offset : offset + size]
        if not block or reason is not None:
            break
        offset += size
        result = cut(block, len(kept), rules)
        kept += block[: result.kept]
        reason, stop_id = result.reason, result.stop_id
    assert (kept, reason, stop_id) == one_at_a_time(ids, rules)


def test_a_stop_inside_the_block_and_the_cap_wins():
    rules = StopRules(stop_ids=frozenset({STOP}), max_tokens=5)
    assert cut([10, 11, STOP, 20, 21, 22], 0, rules) == Cut(3, FinishReason.STOP, STOP)


def test_a_stop_past_the_cap_stays_length():
    rules = StopRules(stop_ids=frozenset({STOP}), max_tokens=5)
    assert cut([10, 11, 12, 20, 21, STOP], 0, rules) == Cut(5, FinishReason.LENGTH)


def test_a_stop_as_the_last_allowed_token_is_a_stop():
    rules = StopRules(stop_ids=frozenset({STOP}), max_tokens=5)
    assert cut([12, STOP], 3, rules) == Cut(2, FinishReason.STOP, STOP)


@pytest.mark.parametrize("place", range(6))
def test_eos_ends_the_sequence_at_each_place_of_a_block(place):
    ids = [1, 2, 3, 4, 5, 6]
    ids[place] = EOS
    assert cut(ids, 4, StopRules(eos_ids=frozenset({EOS, 11}))) == Cut(place + 1, FinishReason.STOP, EOS)
    assert cut(ids, 4, StopRules(eos_ids=frozenset({EOS}), ignore_eos=True)) == Cut(6)


def test_ignore_eos_leaves_the_requests_own_stops():
    rules = StopRules(eos_ids=frozenset({EOS}), stop_ids=frozenset({EOS}), ignore_eos=True)
    assert cut([1, EOS], 0, rules) == Cut(2, FinishReason.STOP, EOS)


def test_min_tokens_lets_early_stops_pass_and_forbids_them_in_drawing():
    rules = StopRules(eos_ids=frozenset({EOS}), stop_ids=frozenset({STOP}), min_tokens=3)
    assert cut([EOS, STOP, EOS, STOP], 0, rules) == Cut(4, FinishReason.STOP, STOP)
    assert [rules.forbidden_at(i) for i in (0, 2, 3)] == [{EOS, STOP}, {EOS, STOP}, set()]


def test_the_context_limit_counts_the_prompt():
    rules = StopRules(max_tokens=100, max_len=10, prompt_len=7)
    assert rules.limit == 3
    assert cut([1, 2, 3, 4], 0, rules) == Cut(3, FinishReason.LENGTH)


def test_nothing_is_kept_when_the_limit_is_already_reached():
    assert cut([STOP], 5, StopRules(stop_ids=frozenset({STOP}), max_tokens=5)) == Cut(0, FinishReason.LENGTH)
