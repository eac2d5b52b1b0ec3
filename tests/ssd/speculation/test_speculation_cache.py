"""Proposals, outcome tables and the cache: whatever is put in, an answer agrees with the committed text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd.speculation.cache import CacheSnapshot, Found, Source, SpeculationCache, StaleReason
from ssd.speculation.outcomes import Branch, OutcomeTable
from ssd.speculation.proposal import Proposal, rebase

# A tiny alphabet makes accidental agreement frequent, which is where wrong answers would hide.
ids = st.integers(0, 2)


def short(limit: int):
    return st.lists(ids, max_size=limit).map(tuple)


@st.composite
def tables(draw):
    proposal = draw(short(4))
    branch = st.builds(Branch, st.integers(0, len(proposal)), ids, short(4))
    return OutcomeTable(
        draw(st.integers(0, 12)), proposal, draw(st.integers(0, 4)), tuple(draw(st.lists(branch, max_size=6)))
    )


proposals = st.builds(Proposal, st.integers(0, 12), short(5))
entries = st.one_of(tables(), proposals)


def put(cache: SpeculationCache, sequence: int, entry: OutcomeTable | Proposal) -> bool:
    return cache.put(sequence, entry) if isinstance(entry, OutcomeTable) else cache.put_proposal(sequence, entry)


def paths_of(entry: OutcomeTable | Proposal) -> list[tuple[int, ...]]:
    return entry.paths() if isinstance(entry, OutcomeTable) else [entry.ids]


def test_a_proposal_is_rebased_onto_tokens_it_predicted():
    assert rebase(Proposal(5, (1, 2, 3)), 7, [1, 2]) == Proposal(7, (3,))
    assert rebase(Proposal(5, (1, 2, 3)), 5, []) == Proposal(5, (1, 2, 3))


@pytest.mark.parametrize(("now", "committed"), [(7, [1, 9]), (8, [1, 2, 3]), (9, [1, 2, 3, 4]), (4, [])])
def test_proposals_that_were_wrong_or_used_up_or_are_ahead_are_stale(now, committed):
    assert rebase(Proposal(5, (1, 2, 3)), now, committed) is None


def test_a_rebase_with_the_wrong_number_of_tokens_is_refused():
    with pytest.raises(ValueError, match="2 tokens were committed"):
        rebase(Proposal(5, (1, 2, 3)), 7, [1])


def test_negative_ids_are_refused_everywhere():
    with pytest.raises(ValueError, match="negative"):
        Proposal(5, (1, -1))
    with pytest.raises(ValueError, match="negative"):
        OutcomeTable(5, (-1,), 0, ())
    with pytest.raises(ValueError, match="negative"):
        OutcomeTable(5, (1,), 1, (Branch(0, 2, (-1,)),))
    with pytest.raises(ValueError, match="accepted"):
        OutcomeTable(5, (1,), 1, (Branch(2, 2, (1,)),))


TABLE = OutcomeTable(
    10, (1, 2), 3, (Branch(0, 5, (6, 7, 8)), Branch(1, 5, (9,)), Branch(2, 3, (4, 4)), Branch(2, 5, ()))
)


@pytest.mark.parametrize(
    ("committed", "answer"),
    [
        ([5], (6, 7, 8)),
        ([5, 6], (7, 8)),
        ([5, 6, 7, 8], None),
        ([5, 9], None),
        ([1, 5], (9,)),
        ([1, 2, 3], (4, 4)),
        ([1, 2, 3, 4], (4,)),
        ([1], (2,)),
        ([], (1, 2)),
        ([1, 2], None),
        ([1, 2, 5], None),
        ([6], None),
    ],
)
def test_a_table_answers_by_content(committed, answer):
    assert TABLE.lookup(committed) == answer


def test_the_longest_answer_wins():
    table = OutcomeTable(0, (1, 2), 3, (Branch(0, 1, (2, 7, 7)), Branch(1, 2, (8,))))
    assert table.lookup([1]) == (2, 7, 7)
    assert table.lookup([1, 2]) == (7, 7)


def test_merging_keeps_deeper_branches_and_the_union():
    shallow = OutcomeTable(3, (1,), 1, (Branch(0, 5, (6,)), Branch(1, 4, (2, 2))))
    deep = OutcomeTable(3, (1,), 2, (Branch(0, 5, (6, 7)), Branch(1, 4, (2,)), Branch(1, 9, (1,))))
    for merged in (shallow.merged_with(deep), deep.merged_with(shallow)):
        assert merged.depth == 2
        assert set(merged.branches) == {Branch(0, 5, (6, 7)), Branch(1, 4, (2, 2)), Branch(1, 9, (1,))}
    with pytest.raises(ValueError, match="different rounds"):
        shallow.merged_with(OutcomeTable(3, (2,), 1, ()))


@given(table=tables(), committed=short(8))
def test_a_table_answers_with_the_rest_of_one_of_its_paths(table, committed):
    rests = [path[len(committed) :] for path in table.paths() if path[: len(committed)] == committed]
    answer = table.lookup(committed)
    assert answer is None or answer in rests
    if answer is None and len(committed) > len(table.proposal):
        assert not any(rests)


@settings(max_examples=500)
@given(
    messages=st.lists(st.tuples(st.integers(1, 2), entries), max_size=12),
    text=st.lists(ids, min_size=30, max_size=30),
    asks=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 20)), max_size=6),
    doubled=st.booleans(),
)
def test_answers_agree_with_the_committed_text_whatever_was_put_in(messages, text, asks, doubled):
    cache = SpeculationCache(tables_per_sequence=2)
    asked = dict(asks)
    for i, (sequence, entry) in enumerate(messages * (1 + doubled)):
        put(cache, sequence, entry)
        now = asked.get(i, i + 2)
        found = cache.next_proposal(1, now, text)
        assert found == cache.next_proposal(1, now, lambda base, now=now: text[base:now]), "asking changes no answer"
        if found is not None:
            assert found.ids
            since = tuple(text[found.base_len : now])
            predicted = (*since, *found.ids)
            sources = (
                [e for s, e in messages[: i + 1] if s == 1] if i < len(messages) else [e for s, e in messages if s == 1]
            )
            assert any(e.base_len == found.base_len and predicted in paths_of(e) for e in sources)
        held = cache.snapshot(1)
        assert len(held.tables) <= 4 and len(held.proposals) <= 4


@given(entry=entries, text=st.lists(ids, min_size=20, max_size=20), now=st.integers(0, 18))
def test_one_entry_is_found_if_and_only_if_it_predicts_something(entry, text, now):
    cache = SpeculationCache()
    put(cache, 1, entry)
    found = cache.next_proposal(1, now, text)
    expected = entry.lookup(text[entry.base_len : now]) if entry.base_len <= now else None
    assert (found.ids if found else None) == expected


def test_the_newest_base_answers_and_a_late_proposal_is_rebased():
    cache = SpeculationCache()
    text = [0] * 10 + [5, 6]
    cache.put_proposal(1, Proposal(10, (5, 6, 7, 8)))
    assert cache.next_proposal(1, 12, text) == Found((7, 8), Source.PROPOSAL, 10)
    cache.put(1, OutcomeTable(11, (), 2, (Branch(0, 6, (3, 3)),)))
    assert cache.next_proposal(1, 12, text) == Found((3, 3), Source.TABLE, 11)
    cache.put_proposal(1, Proposal(12, (4,)))
    assert cache.next_proposal(1, 12, text) == Found((4,), Source.PROPOSAL, 12)


def test_a_table_that_grows_answers_deeper():
    cache = SpeculationCache()
    text = [0, 0, 7]
    cache.put(1, OutcomeTable(2, (), 1, (Branch(0, 7, (1,)),)))
    assert cache.next_proposal(1, 3, text) == Found((1,), Source.TABLE, 2)
    cache.put(1, OutcomeTable(2, (), 3, (Branch(0, 7, (1, 2, 3)),)))
    assert cache.next_proposal(1, 3, text) == Found((1, 2, 3), Source.TABLE, 2)
    assert len(cache.snapshot(1).tables) == 1


def test_answered_and_missed_rounds_are_not_counted_as_stale():
    cache = SpeculationCache()
    text = [0, 0, 7, 1, 9]
    cache.put(1, OutcomeTable(2, (), 1, (Branch(0, 7, (1,)),)))
    assert cache.next_proposal(1, 2, text) is None
    assert cache.next_proposal(1, 3, text) is not None
    cache.put(1, OutcomeTable(3, (1,), 1, (Branch(1, 8, (1,)),)))
    assert cache.next_proposal(1, 5, text) is None
    assert not any(cache.stale.values())
    assert cache.snapshot(1) == CacheSnapshot()


def test_stale_drops_are_counted_by_reason():
    cache = SpeculationCache(tables_per_sequence=1, max_sequences=2, max_branches=1, max_depth=2)
    text = [0, 0, 7, 1, 9, 9]
    cache.put_proposal(1, Proposal(2, (7,)))
    assert cache.next_proposal(1, 4, text) is None
    assert not cache.put_proposal(1, Proposal(2, (7, 1)))
    assert cache.stale[StaleReason.PASSED] == 1
    assert cache.put_proposal(1, Proposal(3, (2, 2)))
    assert cache.next_proposal(1, 4, text) is None
    assert cache.stale[StaleReason.MISMATCH] == 1
    cache.put_proposal(1, Proposal(4, (1, 1)))
    cache.put_proposal(1, Proposal(4, (2, 2)))
    assert cache.stale[StaleReason.SUPERSEDED] == 1
    cache.put(1, OutcomeTable(4, (), 3, (Branch(0, 1, (1, 2, 3)), Branch(0, 2, (1,)))))
    assert cache.snapshot(1).tables[0].branches == (Branch(0, 1, (1, 2)),)
    assert not cache.put(1, OutcomeTable(4, (1, 2, 3), 0, ()))
    assert cache.stale[StaleReason.OVERSIZE] == 2
    for sequence in (2, 3):
        cache.put_proposal(sequence, Proposal(1, (1,)))
    assert len(cache) == 2 and cache.snapshot(1) == CacheSnapshot()
    assert cache.stale[StaleReason.EVICTED] == 2


def test_an_entry_on_a_base_never_reached_does_not_push_out_useful_ones():
    cache = SpeculationCache(tables_per_sequence=1)
    text = [0, 0, 0, 0]
    assert cache.next_proposal(1, 2, text) is None
    cache.put_proposal(1, Proposal(1, (0,)))
    cache.next_proposal(1, 2, text)
    cache.put_proposal(1, Proposal(2, (0, 0)))
    assert cache.next_proposal(1, 2, text) is not None
    cache.put_proposal(1, Proposal(10**9, (1,)))
    assert cache.next_proposal(1, 2, text) == Found((0, 0), Source.PROPOSAL, 2)


def test_forgetting_drops_everything_of_a_sequence():
    cache = SpeculationCache()
    cache.put(4, TABLE)
    cache.forget(4)
    cache.forget(4)
    assert len(cache) == 0
    assert cache.next_proposal(4, 11, [0] * 10 + [5]) is None


@given(messages=st.lists(st.tuples(st.integers(0, 30), entries), max_size=60))
def test_memory_is_bounded(messages):
    cache = SpeculationCache(tables_per_sequence=2, max_sequences=3, max_branches=2, max_depth=3)
    for sequence, entry in messages:
        put(cache, sequence, entry)
    assert len(cache) <= 3
    for sequence in range(31):
        held = cache.snapshot(sequence)
        assert len(held.tables) <= 4 and len(held.proposals) <= 4
        for table in held.tables:
            assert len(table.branches) <= 2 and all(len(branch.ids) <= 3 for branch in table.branches)


@pytest.mark.parametrize("field", ["tables_per_sequence", "max_sequences", "max_branches", "max_depth"])
def test_limits_below_one_are_refused(field):
    with pytest.raises(ValueError, match=field):
        SpeculationCache(**{field: 0})
