"""The coordinator while targets and drafts come and go."""

import pytest

from protos.ssd.v1 import target_pb2, types_pb2
from tests.router.coordination import (
    PROMPT,
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


def test_a_lost_draft_turns_waiting_off_and_its_return_on_again_once_it_answers(both):
    opened(both)
    both.draft_lost("D")
    assert list(both.flush()["T"].drafting) == [target_pb2.SetDrafting(sequence=1, drafting=False)]
    both.on_target("T", said(outcome(3, [7])))
    assert both.flush() == {}
    both.draft_ready("D2", 8)
    messages = both.flush()
    assert list(messages) == ["D2"]
    assert list(messages["D2"].opens[0].ids) == [*PROMPT, 7]
    both.on_draft("D2", drafted(tables=[table(4, [(0, 8, [9])])]))
    message = both.flush()["T"]
    assert list(message.drafting) == [target_pb2.SetDrafting(sequence=1, drafting=True)]
    assert len(message.tables) == 1


def test_an_answer_that_comes_too_late_also_shows_that_the_draft_is_there(both):
    opened(both, mode=types_pb2.MODE_SD)
    both.draft_lost("D")
    both.draft_ready("D2", 8)
    both.on_target("T", said(outcome(3, [7])))
    both.on_target("T", said(outcome(4, [8])))
    both.flush()
    both.on_draft("D2", drafted(proposals=[made(3, [1, 2])]))
    assert both.flush()["T"].drafting[0].drafting


def test_another_draft_takes_over(both):
    opened(both)
    both.draft_ready("E", 8)
    assert both.flush() == {}
    both.draft_lost("D")
    assert list(both.flush()["E"].opens[0].ids) == PROMPT


def test_a_draft_that_refuses_is_not_asked_again_and_the_target_goes_on_alone(both):
    opened(both)
    both.on_draft("D", drafted(refused=[{"sequence": 1, "status": 11, "message": "too long"}]))
    messages = both.flush()
    assert list(messages) == ["T"]
    assert not messages["T"].drafting[0].drafting
    both.on_target("T", said(outcome(3, [7])))
    assert both.flush() == {}
    both.close(1)
    assert list(both.flush()) == ["T"]


def test_a_lost_target_is_replaced_with_prompt_output_and_what_is_anticipated(both):
    opened(both)
    both.on_target("T", said(outcome(3, [7])))
    both.on_draft("D", drafted(tables=[table(4, [(0, 8, [9])])]))
    both.flush()
    both.target_ready("U", 8)
    both.target_lost("T")
    messages = both.flush()
    (replayed,) = messages["U"].opens
    assert (list(replayed.ids), replayed.prompt_len) == ([*PROMPT, 7], 3)
    assert list(messages["U"].tables) == [table(4, [(0, 8, [9])])]
    assert both.on_target("T", said(outcome(4, [8]))) == []
    assert [event.outcome.ids for event in both.on_target("U", said(outcome(4, [8])))] == [[8]]
    assert both.of(1).replays == 1


def test_without_a_target_a_sequence_waits_and_is_opened_when_one_comes(both):
    both.target_lost("T")
    both.open(1, plan())
    assert both.waiting() == [1]
    assert list(both.flush()) == ["D"]
    both.target_ready("U", 8)
    assert both.waiting() == []
    assert both.flush()["U"].opens[0].drafting


def test_a_draft_lost_while_no_target_is_there_is_known_to_the_next_target(both):
    opened(both)
    both.target_lost("T")
    both.draft_lost("D")
    both.target_ready("U", 8)
    assert not both.flush()["U"].opens[0].drafting


def test_a_full_target_is_passed_over_and_a_bad_request_is_not_tried_elsewhere(both):
    both.target_ready("U", 8)
    opened(both)
    assert both.on_target("T", said(refused=[types_pb2.Refused(sequence=1, status=8)])) == []
    assert list(both.flush()["U"].opens[0].ids) == PROMPT
    (failed,) = both.on_target("U", said(refused=[types_pb2.Refused(sequence=1, status=8, message="full")]))
    assert (failed.failure.status, failed.failure.message) == (8, "full")
    assert list(both.flush()["D"].closes) == [1]
    both.open(2, plan())
    both.flush()
    (failed,) = both.on_target("T", said(refused=[types_pb2.Refused(sequence=2, status=3, message="bad")]))
    assert failed.failure.status == 3


def test_new_sequences_go_where_there_are_fewest(both):
    both.target_ready("U", 8)
    both.draft_ready("E", 8)
    for sequence in range(1, 7):
        both.open(sequence, plan())
    messages = both.flush()
    assert {peer: len(message.opens) for peer, message in messages.items()} == {"T": 3, "U": 3, "D": 3, "E": 3}


def test_a_number_is_used_once(both):
    opened(both)
    with pytest.raises(ValueError, match="open already"):
        both.open(1, plan())
