"""What is said of a round besides its tokens: where proposals came from, how outcomes were found, how long it took."""

import pytest

from protos.ssd.v1 import types_pb2
from tests.target_service.rig import AR, AUTO, SD, SSD, Rig, opening, plain_ids
from tests.target_service.test_rounds import wrong

NOTHING, TABLE, JIT, NGRAM = (
    types_pb2.PROPOSAL_SOURCE_UNSPECIFIED,
    types_pb2.PROPOSAL_SOURCE_TABLE,
    types_pb2.PROPOSAL_SOURCE_JIT,
    types_pb2.PROPOSAL_SOURCE_NGRAM,
)
PROMPT = [3, 1, 4, 1, 5]
N = len(PROMPT)


def begun(**kwargs) -> tuple[Rig, list[int]]:
    rig, message = Rig(), opening(1, PROMPT, **kwargs)
    rig.open(message)
    rig.step()
    return rig, plain_ids(message)


def test_a_hit_names_its_source_and_its_rank_and_so_does_the_round_that_verifies_it():
    for mode in (SSD, AUTO):
        rig, truth = begun(mode=mode)
        rig.propose(1, N + 1, truth[1:3])
        rig.table(1, N + 1, truth[1:3], (2, wrong(truth[3]), [1], 1), (2, truth[3], truth[4:7], 2))
        (outcome,) = rig.step()
        assert (outcome.source, outcome.hit, outcome.next_source, outcome.hit_rank) == (JIT, True, TABLE, 2)
        (outcome,) = rig.step()
        assert (outcome.source, outcome.accepted) == (TABLE, 3)
        assert (outcome.hit, outcome.next_source, outcome.next_depth, outcome.hit_rank) == (False, NOTHING, 0, 0)


def test_a_table_of_an_earlier_round_gives_no_rank():
    rig, truth = begun(drafting=False)
    rig.table(1, N, [], (0, truth[0], [wrong(truth[1]), 4], 1), (0, 0, [1], 3))
    rig.table(1, N - 1, [PROMPT[-1]], (1, truth[0], truth[1:4], 1))
    (outcome,) = rig.step()
    assert (outcome.proposed, outcome.source, outcome.hit_rank) == (2, TABLE, 0)


def test_in_sd_nothing_is_a_hit():
    rig, truth = begun(mode=SD)
    rig.propose(1, N + 1, truth[1:2])
    rig.table(1, N + 1, truth[1:2], (1, truth[2], truth[3:5], 1))
    (outcome,) = rig.step()
    assert (outcome.hit, outcome.hit_rank, outcome.next_source, outcome.next_depth) == (False, 0, TABLE, 2)


def test_a_proposal_may_say_that_it_is_a_prompt_lookup():
    rig, truth = begun()
    made = types_pb2.Proposal(sequence=1, base_len=N + 1, ids=truth[1:2], source=NGRAM)
    rig.send(proposals=[made])
    assert rig.step()[0].source == NGRAM


def test_a_deeper_table_that_comes_before_the_step_is_used_as_deep_as_it_is():
    for seconds in (0.0, 0.5):
        rig = Rig()
        message = opening(1, PROMPT)
        truth = plain_ids(message)
        rig.open(message)
        rig.table(1, N, [], (0, truth[0], truth[1:2], 1))
        (outcome,) = rig.step()
        assert (outcome.hit, outcome.next_depth) == (True, 1)
        rig.table(1, N, [], (0, truth[0], truth[1:4], 1))
        (outcome,) = rig.step(seconds)
        assert (outcome.proposed, outcome.source, list(outcome.ids)) == (3, TABLE, truth[1:5])


def test_one_that_comes_during_the_step_or_says_otherwise_changes_nothing():
    rig, message = Rig(), opening(1, PROMPT)
    truth = plain_ids(message)
    rig.open(message)
    rig.table(1, N, [], (0, truth[0], truth[1:3], 1))
    rig.step()
    rig.table(1, N, [], (0, truth[0], [truth[1], wrong(truth[2]), 3, 3], 1))
    assert rig.engine.roster.live[1, 1].proposal.ids == tuple(truth[1:3])
    rig.engine.begin(rig.now)
    rig.table(1, N, [], (0, truth[0], truth[1:5], 1))
    (outcome,) = rig.finish()
    assert (outcome.proposed, list(outcome.ids)) == (2, truth[1:4])
    rig.run()
    assert rig.ids(1) == truth


def test_a_step_is_timed_from_its_begin_to_its_outcomes():
    rig = Rig()
    rig.open(opening(1, PROMPT, mode=AR), opening(2, [9, 9, 9], k=4), opening(3, [7], mode=AR))
    rig.engine.begin(rig.now)
    rig.finish(0.25)
    rig.propose(2, 4, [1, 2])
    rig.engine.begin(rig.now + 1.0)
    rig.finish(1.125)
    assert [(one.rows, one.tokens, one.prefill) for one in rig.timings] == [(3, 9, True), (3, 5, False)]
    assert [one.step_ms for one in rig.timings] == [250.0, 125.0]


def test_prefill_without_outcomes_and_messages_between_steps_carry_no_timing():
    rig = Rig(budget=4)
    rig.open(opening(1, [2] * 9, mode=AR))
    rig.step()
    rig.step()
    rig.open(opening(2, []))
    assert rig.timings == []
    rig.step()
    assert len(rig.timings) == 1
    assert rig.timings[0].prefill is False  # one token was left


def test_without_a_clock_there_is_no_timing():
    rig = Rig()
    rig.open(opening(1, PROMPT, mode=AR))
    (response,) = rig.engine.step(rig.now).values()
    assert response.outcomes and not response.HasField("timing")


@pytest.mark.parametrize(("field", "value"), [("verification", 7), ("fallback", 9), ("mode", 8)])
def test_unknown_choices_are_refused_by_name(field, value):
    rig, message = Rig(), opening(1, PROMPT)
    setattr(message, field, value)
    rig.open(message)
    rig.step()
    assert rig.refused[1].message.startswith(f"{field}: ")
