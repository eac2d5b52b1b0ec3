"""Waiting for a draft: only when nothing else can run, never for long, never for one that does not answer."""

from tests.target_service.rig import AR, SD, SSD, Rig, opening, plain_ids
from tests.target_service.test_rounds import wrong

PROMPT = [3, 1, 4, 1, 5]
N = len(PROMPT)
WAIT_S = 1.0


def begun(*, drafting: bool = True, mode: int = SSD, **limits) -> tuple[Rig, list[int]]:
    rig, message = Rig(wait_s=WAIT_S), opening(1, PROMPT, mode=mode, drafting=drafting, **limits)
    rig.open(message)
    rig.step()
    return rig, plain_ids(message)


def test_a_row_waits_after_a_miss_until_its_limit_and_then_runs_plain():
    rig, truth = begun()
    assert rig.step() == []
    assert rig.engine.wake_at(rig.now) == rig.now + WAIT_S
    assert rig.step(WAIT_S * 0.99) == []
    (outcome,) = rig.step(WAIT_S * 0.02)
    assert (outcome.proposed, list(outcome.ids)) == (0, truth[1:2])


def test_the_clock_of_a_wait_starts_after_the_step_that_missed():
    rig, _ = begun()
    assert rig.engine.wake_at(rig.now + 50) == rig.now + 50  # a step of 50 s
    assert rig.step(50) == []
    assert rig.step(WAIT_S / 2) == []
    assert len(rig.step(WAIT_S / 2)) == 1


def test_a_proposal_ends_the_wait():
    for mode in (SD, SSD):
        rig, truth = begun(mode=mode)
        assert rig.step() == []
        rig.propose(1, N + 1, truth[1:3])
        assert rig.engine.wake_at(rig.now) == rig.now
        assert list(rig.step()[0].ids) == truth[1:4]


def test_an_empty_proposal_for_the_present_base_means_do_not_wait():
    rig, truth = begun()
    rig.step()
    rig.propose(1, N, [])  # of an earlier base
    assert rig.step() == []
    rig.propose(1, N + 1, [])
    (outcome,) = rig.step()
    assert (outcome.proposed, list(outcome.ids)) == (0, truth[1:2])
    assert rig.step() == []  # the next round waits again


def test_a_waiting_row_rides_along_with_any_other_and_takes_part_again_by_rebase():
    rig, truth = begun()
    other = opening(2, [9, 9], mode=AR, max_tokens=2)
    rig.open(other)
    outcomes = {outcome.sequence: outcome for outcome in rig.step()}
    assert list(outcomes[1].ids) == truth[1:2]
    assert list(outcomes[2].ids) == plain_ids(other)[:1]
    rig.propose(1, N + 1, truth[1:5])  # asked for before the row rode along
    outcomes = {outcome.sequence: outcome for outcome in rig.step()}
    assert (outcomes[1].proposed, list(outcomes[1].ids)) == (3, truth[2:6])


def test_rows_that_fell_out_of_step_wait_for_each_other_again():
    """What is left of an answer that came late begins no step while a new one is on its way; it is used in one that
    somebody else begins."""
    rig = Rig(wait_s=WAIT_S)
    one, two = opening(1, PROMPT, mode=SD, max_tokens=30), opening(2, [9, 9], mode=SD, max_tokens=30)
    rig.open(one, two)
    rig.step()
    first, second = plain_ids(one), plain_ids(two)
    rig.propose(1, N + 1, first[1:3])
    outcomes = {outcome.sequence: outcome for outcome in rig.step()}
    assert (outcomes[1].proposed, outcomes[2].proposed) == (2, 0)  # the second rode along
    rig.propose(2, 3, second[1:5])
    assert rig.step() == []
    one_at, two_at = N + 4, 4
    rig.propose(1, one_at, first[4:6])
    outcomes = {outcome.sequence: outcome for outcome in rig.step()}
    assert (outcomes[1].proposed, outcomes[2].proposed) == (2, 3)
    assert outcomes[2].next_depth == 0
    assert list(outcomes[2].ids) == second[two_at - 2 : two_at + 2]


def test_a_late_answer_is_used_where_the_draft_is_not_waited_for():
    rig, truth = begun(mode=SD, max_tokens=30)
    for _ in range(3):
        assert rig.step() == []
        assert len(rig.step(WAIT_S)) == 1
    done = len(rig.ids(1))
    rig.propose(1, N + done - 1, truth[done - 1 : done + 3])
    (outcome,) = rig.step()
    assert outcome.proposed == 3


def test_two_waiting_rows_wait_for_each_other_no_longer_than_for_the_first_answer():
    rig = Rig(wait_s=WAIT_S)
    one, two = opening(1, PROMPT), opening(2, [9, 9])
    rig.open(one, two)
    rig.step()
    assert rig.step() == []
    rig.propose(2, 3, plain_ids(two)[1:3])
    outcomes = {outcome.sequence: outcome.proposed for outcome in rig.step()}
    assert outcomes == {1: 0, 2: 2}


def test_a_draft_that_never_answers_is_not_waited_for_for_ever():
    rig, truth = begun()
    start = rig.now
    rig.run()
    assert rig.now - start == 3 * WAIT_S
    assert rig.ids(1) == truth


def test_waiting_begins_again_once_a_proposal_was_of_use():
    rig, truth = begun(max_tokens=30)
    for _ in range(3):
        assert rig.step() == []
        assert len(rig.step(WAIT_S)) == 1
    assert len(rig.step()) == 1  # given up
    done = len(rig.ids(1))
    rig.propose(1, N + done, [wrong(truth[done])])
    rig.step()
    assert rig.step() == []


def test_without_a_draft_nothing_waits_and_a_draft_may_come_and_go():
    rig, truth = begun(drafting=False)
    assert len(rig.step()) == 1
    rig.send(drafting=[{"sequence": 1, "drafting": True}])
    assert len(rig.step()) == 1  # this round had begun without one
    assert rig.step() == []
    rig.send(drafting=[{"sequence": 1, "drafting": False}])
    assert len(rig.step()) == 1
    assert len(rig.step()) == 1
    rig.send(drafting=[{"sequence": 77, "drafting": True}])
    rig.run()
    assert rig.ids(1) == truth


def test_the_last_token_is_never_waited_for():
    rig, truth = begun(max_tokens=2)
    (outcome,) = rig.step()
    assert list(outcome.ids) == truth[1:]


def test_ar_rows_never_wait():
    rig, truth = begun(mode=AR)
    start = rig.now
    rig.run()
    assert (rig.now, rig.ids(1)) == (start, truth)


def test_an_idle_engine_sleeps():
    rig = Rig()
    assert rig.engine.wake_at(rig.now) is None
    assert rig.step() == []
    assert rig.runner.steps == []
