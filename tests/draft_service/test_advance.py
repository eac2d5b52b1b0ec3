"""What the target commits, and when it says so."""

import pytest

from ssd.models.loader import LoadedModel
from tests.draft_service.harness import Reference, Request, Wire, make_engine

PROMPT = (61, 5, 5, 230, 8)
REQUEST = Request(PROMPT, {"temperature": 1.0, "repetition_penalty": 1.2}, k=4, fan_out=2)
BASE = len(PROMPT)


def assert_right(wire: Wire, ids: tuple[int, ...], reference: Reference, request: Request = REQUEST) -> None:
    """The last table stands on `ids` and is what plain drafting gives."""
    table = wire.tables[-1]
    assert table.base_len == len(ids)
    for branch in table.branches:
        text = (*ids, *table.proposal[: branch.accepted], branch.token)
        assert branch.ids == reference.continuation(request, text, request.k)


def test_after_a_hit_the_next_table_stands_on_the_branch(wire: Wire, reference: Reference) -> None:
    wire.open(REQUEST)
    wire.run()
    branch = wire.tables[-1].branches[3]
    wire.advance(BASE, (branch.token,), depth=4)
    wire.run()
    assert wire.tables[-1].proposal == branch.ids
    assert not wire.proposals
    assert_right(wire, (*PROMPT, branch.token), reference)
    (table, accepted) = (wire.tables[-1], 2)
    following = next(b for b in table.branches if b.accepted == accepted)
    emitted = (*table.proposal[:accepted], following.token)
    wire.advance(BASE + 1, emitted, depth=4)
    wire.run()
    assert wire.tables[-1].proposal == following.ids
    assert_right(wire, (*PROMPT, branch.token, *emitted), reference)


def test_a_miss_gets_a_proposal_first_and_then_a_table_on_it(wire: Wire, reference: Reference) -> None:
    wire.open(REQUEST)
    wire.run()
    surprise = next(i for i in range(320) if all(i != b.token for b in wire.tables[-1].branches))
    del wire.tables[:]
    wire.advance(BASE, (surprise,), need=True)
    while not wire.proposals:
        assert wire.step() and not wire.tables
    wire.run()
    expected = reference.continuation(REQUEST, (*PROMPT, surprise), 4)
    assert tuple(wire.proposals[0].ids) == expected == wire.tables[-1].proposal
    assert_right(wire, (*PROMPT, surprise), reference)


def test_the_depth_in_flight_is_what_the_target_says(wire: Wire, reference: Reference) -> None:
    wire.open(REQUEST)
    wire.run()
    branch = wire.tables[-1].branches[0]
    wire.advance(BASE, (branch.token,), depth=2)
    wire.run()
    assert wire.tables[-1].proposal == branch.ids[:2]
    assert_right(wire, (*PROMPT, branch.token), reference)


def test_a_half_grown_table_answers_a_miss_at_once(wire: Wire, reference: Reference) -> None:
    wire.open(REQUEST)
    while not wire.tables:
        wire.step()
    wire.step()
    token = wire.tables[-1].branches[1].token
    assert wire.tables[-1].depth == 2
    wire.advance(BASE, (token,), need=True)
    assert wire.engine.load().kv_blocks_used <= 2, "the scratch of a decided table goes back before the next step"
    wire.step()
    assert tuple(wire.proposals[0].ids) == reference.continuation(REQUEST, (*PROMPT, token), 3), "deeper than was sent"
    wire.run()
    assert wire.tables[-1].proposal == tuple(wire.proposals[0].ids)
    assert_right(wire, (*PROMPT, token), reference)


def test_an_outcome_that_arrives_during_a_step_finds_what_the_step_drafted(wire: Wire, reference: Reference) -> None:
    wire.open(REQUEST)
    while not wire.tables:
        wire.step()
    token = wire.tables[-1].branches[0].token
    wire.engine.begin(0.0)
    wire.advance(BASE, (token,), need=True)
    answer = wire.engine.finish()[wire.stream].proposals[0]
    wire.engine.check()
    assert tuple(answer.ids) == reference.continuation(REQUEST, (*PROMPT, token), 3)


def test_a_proposal_under_way_goes_on_when_its_beginning_is_committed(wire: Wire, reference: Reference) -> None:
    wire.open(REQUEST, need=True)
    for _ in range(3):
        wire.step()
    expected = reference.continuation(REQUEST, PROMPT, 6)
    steps = wire.engine.load().steps
    wire.advance(BASE, expected[:2], need=True)
    wire.run()
    assert [tuple(p.ids) for p in wire.proposals] == [expected[2:]]
    assert wire.proposals[0].base_len == BASE + 2
    assert steps == 3
    assert_right(wire, (*PROMPT, *expected[:2]), reference)


def test_a_proposal_under_way_begins_anew_when_something_else_is_committed(wire: Wire, reference: Reference) -> None:
    wire.open(REQUEST, need=True)
    for _ in range(3):
        wire.step()
    other = (reference.continuation(REQUEST, PROMPT, 1)[0] + 1) % 300
    wire.advance(BASE, (other,), need=True)
    wire.run()
    assert [tuple(p.ids) for p in wire.proposals] == [reference.continuation(REQUEST, (*PROMPT, other), 4)]
    assert_right(wire, (*PROMPT, other), reference)


def test_a_late_proposal_is_answered_with_what_is_left_of_it(wire: Wire, reference: Reference) -> None:
    wire.open(REQUEST, need=True)
    while not wire.proposals:
        wire.step()
    expected = reference.continuation(REQUEST, PROMPT, 4)
    wire.advance(BASE, expected[:1], need=True)
    wire.step()
    assert tuple(wire.proposals[1].ids) == expected[1:] and wire.proposals[1].base_len == BASE + 1


def test_a_plain_step_of_the_target_is_followed_without_a_proposal_in_flight(wire: Wire, reference: Reference) -> None:
    wire.open(REQUEST)
    wire.run()
    wire.advance(BASE, (77,))
    wire.run()
    assert wire.tables[-1].proposal == ()
    assert len(wire.tables[-1].branches) == 10
    assert_right(wire, (*PROMPT, 77), reference)


def test_several_outcomes_may_arrive_before_a_step(wire: Wire, reference: Reference) -> None:
    wire.open(REQUEST)
    for i, token in enumerate((7, 77, 177)):
        wire.advance(BASE + i, (token,), need=True)
    wire.run()
    assert [p.base_len for p in wire.proposals] == [BASE + 3]
    assert tuple(wire.proposals[0].ids) == reference.continuation(REQUEST, (*PROMPT, 7, 77, 177), 4)
    assert_right(wire, (*PROMPT, 7, 77, 177), reference)


def test_kv_of_a_refused_proposal_is_not_taken_for_that_of_the_committed_tokens(
    wire: Wire, reference: Reference
) -> None:
    wire.open(REQUEST, need=True)
    wire.run()
    others = tuple((token + 1) % 300 for token in wire.proposals[0].ids)
    for i, token in enumerate(others):
        wire.advance(BASE + i, (token,), need=True)
    wire.run()
    assert tuple(wire.proposals[-1].ids) == reference.continuation(REQUEST, PROMPT + others, 4)
    assert_right(wire, PROMPT + others, reference)


def test_a_doubled_advance_is_dropped(wire: Wire) -> None:
    wire.open(REQUEST)
    wire.advance(BASE, (7, 8))
    wire.advance(BASE, (7, 8))
    wire.advance(BASE, (7,), need=True)
    wire.run()
    assert not wire.need_resync and not wire.proposals
    assert wire.engine.load().stale_drops == 2
    assert wire.tables[-1].base_len == BASE + 2


def test_an_overlapping_advance_is_applied_from_where_it_is_new(wire: Wire, reference: Reference) -> None:
    wire.open(REQUEST)
    wire.advance(BASE, (7, 8))
    wire.advance(BASE + 1, (8, 9), need=True)
    wire.run()
    assert tuple(wire.proposals[0].ids) == reference.continuation(REQUEST, (*PROMPT, 7, 8, 9), 4)


def test_a_gap_is_answered_with_need_resync_and_healed_by_resync(wire: Wire, reference: Reference) -> None:
    wire.open(REQUEST)
    wire.advance(BASE + 1, (8,), need=True)
    wire.advance(BASE + 2, (9,), need=True)
    wire.run()
    assert [(need.sequence, need.have_len) for need in wire.need_resync] == [(1, BASE)]
    assert not wire.proposals
    wire.resync((*PROMPT, 7, 8, 9), need=True)
    wire.run()
    assert tuple(wire.proposals[0].ids) == reference.continuation(REQUEST, (*PROMPT, 7, 8, 9), 4)
    assert_right(wire, (*PROMPT, 7, 8, 9), reference)


def test_an_advance_that_contradicts_what_is_committed_asks_for_a_resync(wire: Wire) -> None:
    wire.open(REQUEST)
    wire.advance(BASE, (7, 8))
    wire.advance(BASE + 1, (99, 100))
    wire.run()
    assert [need.have_len for need in wire.need_resync] == [BASE + 2]


@pytest.mark.parametrize("need", [False, True])
def test_a_resync_to_other_ids_begins_anew(wire: Wire, reference: Reference, need: bool) -> None:
    wire.open(REQUEST)
    wire.advance(BASE, tuple(range(20, 40)))
    wire.run()
    truth = (*PROMPT, *range(20, 26), 300, 301)
    wire.resync(truth, need=need)
    wire.run()
    assert bool(wire.proposals) == need
    assert_right(wire, truth, reference)


def test_an_old_resync_is_dropped(wire: Wire) -> None:
    wire.open(REQUEST)
    wire.advance(BASE, (7, 8))
    wire.resync((*PROMPT, 7), need=True)
    wire.run()
    assert not wire.proposals and wire.engine.load().stale_drops == 1


def test_asking_again_at_the_same_base_repeats_the_proposal(wire: Wire) -> None:
    wire.open(REQUEST, need=True)
    wire.advance(BASE, (), need=True)
    wire.run()
    assert len(wire.proposals) == 1, "it was under way already"
    wire.resync(PROMPT, need=True)
    wire.run()
    assert len(wire.proposals) == 2 and wire.proposals[0] == wire.proposals[1]


def test_a_waiting_target_gets_a_proposal_while_a_table_is_being_built(wire: Wire, reference: Reference) -> None:
    wire.open(REQUEST)
    while not wire.tables:
        wire.step()
    wire.resync(PROMPT, need=True)
    wire.run()
    assert tuple(wire.proposals[0].ids) == reference.continuation(REQUEST, PROMPT, 4) == wire.tables[-1].proposal


def test_messages_about_unknown_sequences_are_dropped(wire: Wire) -> None:
    wire.advance(3, (1,), 5)
    wire.resync((1, 2), 5)
    wire.send(closes=[5])
    wire.run()
    assert not wire.need_resync and not wire.refused and not wire.closed
    assert wire.engine.load().stale_drops == 2


def test_sequences_of_two_streams_are_kept_apart(loaded: LoadedModel) -> None:
    engine = make_engine(loaded)
    one, two = Wire(engine, 1), Wire(engine, 2)
    one.open(REQUEST)
    two.open(Request((1, 2, 3), k=3))
    while engine.wake_at(0.0) is not None:
        for stream, response in engine.step(0.0).items():
            assert {table.base_len for table in response.tables} <= {BASE if stream == 1 else 3}
    engine.close_stream(1)
    engine.check()
    assert engine.load().running == 1
    engine.close_stream(2)
    engine.check()
    assert engine.load().kv_blocks_used == 0
