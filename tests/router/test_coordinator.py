"""The coordinator, message by message."""

import pytest

from protos.ssd.v1 import draft_pb2, types_pb2
from router.coordinator import Coordinator, Emitted, Failed
from router.plan import uniform
from tests.router.coordination import (
    PROMPT,
    advance,
    drafted,
    made,
    opened,
    outcome,
    plan,
    said,
    table,
    target_and_draft,
)


@pytest.fixture
def both():
    return target_and_draft()


def test_a_new_sequence_is_opened_at_target_and_draft(both):
    messages = opened(both)
    (at_target,), (at_draft,) = messages["T"].opens, messages["D"].opens
    assert list(at_target.ids) == list(at_draft.ids) == PROMPT
    assert (at_target.prompt_len, at_target.k, at_target.drafting, at_target.sampling.seed) == (3, 4, True, 5)
    assert (at_draft.prompt_len, at_draft.k, at_draft.fan_out, at_draft.need_proposal) == (3, 4, uniform(3), False)
    assert both.flush() == {}


def test_plain_decoding_has_no_draft(both):
    messages = opened(both, mode=types_pb2.MODE_AR)
    assert "D" not in messages
    assert not messages["T"].opens[0].drafting
    both.on_target("T", said(outcome(3, [7])))
    assert both.flush() == {}


def test_k_is_at_most_what_a_peer_takes():
    coordinator = Coordinator()
    coordinator.target_ready("T", 3)
    coordinator.draft_ready("D", 2)
    messages = opened(coordinator, k=4)
    assert (messages["T"].opens[0].k, messages["D"].opens[0].k) == (3, 2)


def test_one_message_for_each_peer_whatever_the_number_of_sequences(both):
    for sequence in (1, 2, 3):
        both.open(sequence, plan())
    messages = both.flush()
    assert [len(messages[peer].opens) for peer in ("T", "D")] == [3, 3]
    both.on_target("T", said(*(outcome(3, [9], sequence=sequence) for sequence in (1, 2, 3))))
    messages = both.flush()
    assert list(messages) == ["D"]
    assert [one.sequence for one in messages["D"].advances] == [1, 2, 3]


def test_a_miss_asks_for_a_proposal_and_a_hit_for_the_next_table(both):
    opened(both)
    miss = advance(both, said(outcome(3, [7])))
    assert (miss.base_len, list(miss.ids), miss.need_proposal, miss.next_depth) == (3, [7], True, 0)
    hit = advance(both, said(outcome(4, [8, 9], proposed=4, accepted=1, hit=True, next_depth=3)))
    assert (hit.base_len, list(hit.ids), hit.need_proposal, hit.next_depth) == (4, [8, 9], False, 3)
    totals = both.of(1).totals
    assert (totals.rounds, totals.proposed, totals.accepted, totals.hits, totals.misses) == (2, 4, 1, 1, 1)


def test_several_outcomes_before_a_flush_are_one_advance(both):
    opened(both)
    both.on_target("T", said(outcome(3, [7])))
    one = advance(both, said(outcome(4, [8, 9], hit=True, next_depth=2)))
    assert (one.base_len, list(one.ids), one.need_proposal, one.next_depth) == (3, [7, 8, 9], False, 2)


def test_sd_asks_for_a_proposal_after_each_outcome_and_counts_no_hits(both):
    opened(both, mode=types_pb2.MODE_SD)
    assert advance(both, said(outcome(3, [7]))).need_proposal
    assert advance(both, said(outcome(4, [8], proposed=4))).need_proposal
    assert (both.of(1).totals.hits, both.of(1).totals.misses) == (0, 0)


def test_the_last_token_needs_no_proposal_and_is_no_miss(both):
    opened(both, max_tokens=3)
    assert advance(both, said(outcome(3, [7]))).need_proposal
    last_but_one = advance(both, said(outcome(4, [8])))
    assert not last_but_one.need_proposal
    assert both.of(1).totals.misses == 1


def test_tables_go_into_the_cache_and_on_to_the_target(both):
    opened(both)
    sent = table(3, [(0, 7, [8, 9])])
    both.on_draft("D", drafted(tables=[sent]))
    assert list(both.flush()["T"].tables) == [sent]
    assert len(both.snapshot(1).tables) == 1


def test_what_the_router_has_and_the_target_missed_is_sent_again_as_a_proposal(both):
    opened(both)
    both.on_draft("D", drafted(tables=[table(3, [(0, 7, [8, 9])])]))
    both.flush()
    both.on_target("T", said(outcome(3, [7])))
    messages = both.flush()
    assert list(messages["T"].proposals) == [made(4, [8, 9], source=types_pb2.PROPOSAL_SOURCE_TABLE)]
    (one,) = messages["D"].advances
    assert (one.need_proposal, one.next_depth) == (False, 2)


def test_proposals_are_rebased_or_dropped(both):
    opened(both)
    both.on_target("T", said(outcome(3, [7], next_depth=2, next_source=types_pb2.PROPOSAL_SOURCE_TABLE)))
    both.flush()
    both.on_draft("D", drafted(proposals=[made(3, [7, 8, 9])]))
    assert list(both.flush()["T"].proposals) == [made(4, [8, 9])]
    both.on_draft("D", drafted(proposals=[made(3, [6, 8]), made(3, [7]), made(9, [1]), made(2, [3, 7, 8])]))
    assert both.flush() == {}
    assert both.stale == {"proposal stale": 2, "proposal ahead": 2}


def test_what_is_left_of_a_late_proposal_does_not_stand_for_the_one_that_is_asked_for(both):
    opened(both)
    both.on_target("T", said(outcome(3, [7])))
    assert both.flush()["D"].advances[0].need_proposal
    both.on_draft("D", drafted(proposals=[made(3, [7, 8, 9])]))
    assert list(both.flush()["T"].proposals) == [made(3, [7, 8, 9])], "the target sees how old it is"
    assert both.of(1).need_proposal and not both.of(1).next_depth
    both.on_target("T", said(outcome(4, [8, 9, 5], proposed=2, accepted=2)))
    (advance,) = both.flush()["D"].advances
    assert advance.need_proposal


def test_an_empty_proposal_passes_only_for_the_present_base(both):
    opened(both)
    both.on_draft("D", drafted(proposals=[made(3, [])]))
    assert list(both.flush()["T"].proposals) == [made(3, [])]
    both.on_target("T", said(outcome(3, [7])))
    both.flush()
    both.on_draft("D", drafted(proposals=[made(3, [])]))
    assert both.flush() == {}


def test_tables_of_another_past_or_of_the_future_are_dropped_and_counted(both):
    opened(both)
    both.on_target("T", said(outcome(3, [7])))
    both.flush()
    both.on_draft("D", drafted(tables=[table(3, [(0, 6, [1])]), table(5, [(0, 6, [1])]), table(2, [(0, 3, [7, 8])])]))
    assert both.flush() == {}
    assert both.stale == {"table stale": 1, "table ahead": 2}


def test_a_prediction_of_absurd_size_is_dropped_unread(both):
    opened(both)
    many = [1 << 31] * 500_000
    both.on_draft("D", drafted(tables=[table(3, [(0, 6, many)])], proposals=[made(3, many)]))
    assert both.flush() == {}
    assert both.stale == {"table oversize": 1, "proposal oversize": 1}


def test_messages_for_sequences_that_are_gone_or_elsewhere_are_dropped(both):
    both.draft_ready("E", 8)
    opened(both)
    both.on_draft("E", drafted(tables=[table(3, [(0, 7, [8])])], need_resync=[{"sequence": 1}]))
    assert both.on_target("X", said(outcome(3, [7]))) == []
    assert both.on_target("T", said(outcome(3, [7], sequence=9))) == []
    assert both.flush() == {}
    assert both.stale == {"another draft": 2, "another target": 1, "sequence closed": 1}


def test_a_repeated_outcome_is_dropped_and_one_from_the_future_ends_the_sequence(both):
    opened(both)
    first = said(outcome(3, [7]))
    assert [event.outcome.ids for event in both.on_target("T", first)] == [[7]]
    assert both.on_target("T", first) == []
    assert both.stale == {"outcome repeated": 1}
    (failed,) = both.on_target("T", said(outcome(6, [7])))
    assert isinstance(failed, Failed)
    assert failed.failure.status == 13
    messages = both.flush()
    assert list(messages["T"].closes) == list(messages["D"].closes) == [1]


def test_a_resync_carries_everything_and_is_followed_by_plain_advances(both):
    opened(both)
    both.on_target("T", said(outcome(3, [7, 8])))
    both.flush()
    both.on_draft("D", drafted(need_resync=[{"sequence": 1, "have_len": 1}, {"sequence": 1, "have_len": 1}]))
    message = both.flush()["D"]
    assert list(message.resyncs) == [draft_pb2.Resync(sequence=1, ids=[*PROMPT, 7, 8], need_proposal=True)]
    assert not message.advances
    assert advance(both, said(outcome(5, [9]))).base_len == 5


def test_an_end_at_the_target_closes_only_the_draft(both):
    opened(both)
    events = both.on_target("T", said(outcome(3, [7], finish=types_pb2.FINISH_REASON_LENGTH)))
    assert isinstance(events[0], Emitted)
    messages = both.flush()
    assert list(messages) == ["D"]
    assert list(messages["D"].closes) == [1]
    assert not messages["D"].advances
    assert not both.close(1)
    assert both.flush() == {}


def test_a_close_reaches_both_once(both):
    opened(both)
    assert both.close(1)
    assert not both.close(1)
    messages = both.flush()
    assert list(messages["T"].closes) == list(messages["D"].closes) == [1]
    assert both.flush() == {}
    assert len(both) == 0


def test_a_sequence_closed_before_its_open_left_is_never_mentioned(both):
    both.open(1, plan())
    both.close(1)
    assert both.flush() == {}


def test_a_stop_within_the_same_step_sends_no_advance(both):
    opened(both)
    both.on_target("T", said(outcome(3, [7])))
    both.close(1)
    messages = both.flush()
    assert not messages["D"].advances
    assert list(messages["D"].closes) == [1]
