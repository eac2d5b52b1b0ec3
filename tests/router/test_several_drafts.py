"""Several drafts on one sequence: parts of the fan-out, one proposer, and what each is told."""

import pytest

from protos.ssd.v1 import draft_pb2, types_pb2
from router.coordinator import Coordinator
from tests.router.coordination import PROMPT, drafted, made, opened, outcome, plan, said, table

TABLE, JIT, NGRAM = (
    types_pb2.PROPOSAL_SOURCE_TABLE,
    types_pb2.PROPOSAL_SOURCE_JIT,
    types_pb2.PROPOSAL_SOURCE_NGRAM,
)


@pytest.fixture
def three():
    """A target T and drafts D0 to D2."""
    coordinator = Coordinator()
    coordinator.target_ready("T", 8)
    for number in range(3):
        coordinator.draft_ready(f"D{number}", 8)
    return coordinator


def advances(coordinator):
    """The next advance for each draft."""
    found = {}
    for peer, message in coordinator.flush().items():
        if isinstance(message, draft_pb2.DraftServiceServeRequest):
            for advance in message.advances:
                found[peer] = advance
    return found


def test_each_draft_gets_the_same_plan_and_a_part_of_its_own(three):
    messages = opened(three, drafts=3)
    opens = [messages[f"D{number}"].opens[0] for number in range(3)]
    assert [(one.part, one.parts) for one in opens] == [(0, 3), (1, 3), (2, 3)]
    assert len({(one.k, one.fan_out.fan_out, tuple(one.ids)) for one in opens}) == 1


def test_there_are_no_more_parts_than_drafts_and_no_more_drafts_than_asked_for(three):
    messages = opened(three, drafts=4)
    assert [messages[f"D{number}"].opens[0].parts for number in range(3)] == [3, 3, 3]
    three.close(1)
    three.flush()
    three.open(2, plan(drafts=2))
    assert sum(peer != "T" for peer in three.flush()) == 2


def test_sd_has_one_draft_and_prompt_lookup_none(three):
    assert set(opened(three, mode=types_pb2.MODE_SD, drafts=3)) == {"T", "D0"}
    three.open(2, plan(mode=types_pb2.MODE_SD, drafts=3, fallback=types_pb2.FALLBACK_NGRAM))
    messages = three.flush()
    assert set(messages) == {"T"}
    assert not messages["T"].opens[0].drafting


def test_only_the_first_draft_is_asked_for_a_proposal_and_the_others_hear_of_it(three):
    opened(three, drafts=3)
    three.on_target("T", said(outcome(3, [7])))
    assert {peer: one.need_proposal for peer, one in advances(three).items()} == {"D0": True, "D1": False, "D2": False}
    three.on_draft("D0", drafted(proposals=[made(4, [8, 9])]))
    told = advances(three)
    assert set(told) == {"D1", "D2"}
    for one in told.values():
        assert (one.base_len, list(one.ids), list(one.in_flight), one.next_depth) == (4, [], [8, 9], 2)
        assert (one.need_proposal, one.next_source) == (False, JIT)
    assert advances(three) == {}


def test_a_branch_of_one_draft_is_told_to_all_as_what_is_in_flight(three):
    opened(three, drafts=3)
    three.on_draft("D0", drafted(tables=[table(3, [(0, 7, [8, 9])])]))
    three.on_draft("D1", drafted(tables=[table(3, [(0, 6, [5, 4])])]))
    assert len(three.flush()["T"].tables) == 2
    assert len(three.snapshot(1).tables) == 1, "tables of one round are one"
    three.on_target("T", said(outcome(3, [6], hit=True, next_depth=2, next_source=TABLE)))
    told = advances(three)
    assert [list(one.in_flight) for one in told.values()] == [[5, 4]] * 3
    assert not any(one.need_proposal for one in told.values())


def test_a_lone_draft_is_not_told_what_it_has_made_itself():
    coordinator = Coordinator()
    coordinator.target_ready("T", 8)
    coordinator.draft_ready("D", 8)
    opened(coordinator)
    coordinator.on_draft("D", drafted(tables=[table(3, [(0, 7, [8, 9])])]))
    coordinator.on_target("T", said(outcome(3, [7], hit=True, next_depth=2, next_source=TABLE)))
    (one,) = advances(coordinator).values()
    assert (list(one.in_flight), one.next_depth) == ([], 2)


def test_every_draft_is_told_of_a_prompt_lookup():
    coordinator = Coordinator()
    coordinator.target_ready("T", 8)
    coordinator.draft_ready("D", 8)
    opened(coordinator)
    coordinator.on_target("T", said(outcome(3, [2], next_depth=2, next_source=NGRAM)))
    (one,) = advances(coordinator).values()
    assert (list(one.in_flight), one.next_source, one.need_proposal) == ([3, 2], NGRAM, False)
    assert PROMPT == [1, 2, 3]


def test_a_death_shrinks_the_table_and_the_parts_are_dealt_anew(three):
    opened(three, drafts=3)
    three.draft_lost("D0")
    assert three.flush() == {}, "the target goes on waiting, the others go on building"
    three.on_draft("D1", drafted(tables=[table(3, [(0, 7, [8])])]))
    assert len(three.flush()["T"].tables) == 1
    three.on_target("T", said(outcome(3, [9])))
    told = advances(three)
    assert {peer: (one.part, one.parts, one.need_proposal) for peer, one in told.items()} == {
        "D1": (0, 2, True),
        "D2": (1, 2, False),
    }
    three.on_target("T", said(outcome(4, [9])))
    assert [one.parts for one in advances(three).values()] == [0, 0], "said once"


def test_another_draft_is_asked_when_the_first_one_dies_while_the_target_waits(three):
    opened(three, drafts=3)
    three.on_target("T", said(outcome(3, [7])))
    three.flush()
    three.draft_lost("D0")
    told = advances(three)
    assert set(told) == {"D1"}
    assert (told["D1"].base_len, list(told["D1"].ids), told["D1"].need_proposal) == (4, [], True)
    three.on_draft("D1", drafted(proposals=[made(4, [])]))
    three.draft_lost("D1")
    assert advances(three) == {}, "that there is none was an answer"


def test_a_draft_that_comes_back_rejoins_with_the_last_part(three):
    opened(three, drafts=3)
    three.draft_lost("D1")
    three.on_target("T", said(outcome(3, [7])))
    three.flush()
    three.draft_ready("D3", 8)
    (back,) = three.flush()["D3"].opens
    assert (list(back.ids), back.part, back.parts) == ([*PROMPT, 7], 2, 3)
    three.on_target("T", said(outcome(4, [8])))
    told = advances(three)
    assert {peer: (one.part, one.parts) for peer, one in told.items()} == {"D0": (0, 3), "D2": (1, 3), "D3": (0, 0)}


def test_the_last_one_to_die_leaves_plain_decoding(three):
    opened(three, drafts=3)
    for number in range(2):
        three.draft_lost(f"D{number}")
        assert not three.flush()
    three.draft_lost("D2")
    (change,) = three.flush()["T"].drafting
    assert not change.drafting
