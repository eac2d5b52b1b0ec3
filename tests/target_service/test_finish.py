"""The end of a sequence inside an accepted block is where the plain loop ends."""

import pytest

from protos.ssd.v1 import types_pb2
from ssd.speculation.finish import FinishReason
from tests.target_service.rig import AR, EOS, SSD, Rig, opening, plain, plain_ids

PROMPT = [3, 1, 4, 1, 5]
FREE = plain_ids(opening(1, PROMPT, max_tokens=12))
"""What comes when nothing stops it."""

REASONS = {FinishReason.STOP: types_pb2.FINISH_REASON_STOP, FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH}


def finished(**limits) -> Rig:
    """Runs plainly and with proposals of the unstopped text; both must be the plain loop. Returns the latter's rig."""
    sampling = limits.pop("sampling", None)
    for mode in (AR, SSD):
        message = opening(1, PROMPT, mode=mode, sampling=sampling, **limits)
        drawn, reason = plain(message)
        rig = Rig()
        rig.open(message)
        for done in range(len(drawn) + 1):
            rig.propose(1, len(PROMPT) + done, FREE[done : done + 4])
        rig.run()
        assert rig.ids(1) == [one.id for one in drawn]
        assert rig.last(1).finish == REASONS[reason]
        assert rig.closed == [1]
        assert rig.pool.in_use == 0
        assert not rig.last(1).hit
    return rig


@pytest.mark.parametrize("position", range(1, 8))
def test_a_stop_id_at_any_place_of_a_block(position):
    rig = finished(stop_ids=[FREE[position], 0] if FREE[position] else [FREE[position]])
    assert rig.last(1).stop_id in (FREE[position], 0)


@pytest.mark.parametrize("limit", range(1, 9))
def test_max_tokens_at_any_place_of_a_block(limit):
    rig = finished(max_tokens=limit)
    assert rig.ids(1) == FREE[:limit]


@pytest.mark.parametrize("limit", range(1, 9))
@pytest.mark.parametrize("position", [2, 4, 6])
def test_a_stop_past_the_cap_stays_length_and_one_within_wins(position, limit):
    rig = finished(stop_ids=[FREE[position]], max_tokens=limit)
    first = FREE.index(FREE[position])
    assert (rig.last(1).finish == types_pb2.FINISH_REASON_STOP) == (first < limit)


def test_the_models_own_end_and_ignoring_it():
    sampling = {"logit_bias": {EOS: 4.0}, "temperature": 1.0}
    drawn, reason = plain(opening(1, PROMPT, sampling=sampling, ignore_eos=False, max_tokens=40))
    assert reason is FinishReason.STOP
    rig = finished(sampling=sampling, ignore_eos=False, max_tokens=40)
    assert rig.last(1).stop_id == EOS
    assert len(finished(sampling=sampling, ignore_eos=True, max_tokens=40).ids(1)) == 40


@pytest.mark.parametrize("least", [1, 3, 5, 6])
def test_no_end_and_no_end_id_before_min_tokens(least):
    rig = finished(stop_ids=FREE[1:4], min_tokens=least, max_tokens=30)
    assert len(rig.ids(1)) > least or rig.last(1).finish == types_pb2.FINISH_REASON_LENGTH
    assert not set(rig.ids(1)[:least]) & set(FREE[1:4])


def test_the_context_ends_it_with_the_last_token_that_fits():
    rig = Rig(max_context=14)
    rig.open(opening(1, PROMPT, max_tokens=9))
    for done in range(9):
        rig.propose(1, len(PROMPT) + done, FREE[done : done + 4])
    rig.run()
    assert rig.ids(1) == FREE[:9]
    assert rig.last(1).finish == types_pb2.FINISH_REASON_LENGTH
    assert max(start + tokens for rows in rig.runner.steps for start, tokens, _ in rows) <= 13


def test_a_proposal_never_reaches_past_the_last_token():
    rig = Rig()
    rig.open(opening(1, PROMPT, max_tokens=4))
    rig.step()
    rig.propose(1, 6, FREE[1:5])
    (outcome,) = rig.step()
    assert (outcome.proposed, list(outcome.ids)) == (2, FREE[1:4])


def test_accepted_counts_only_what_was_emitted():
    rig = Rig()
    rig.open(opening(1, PROMPT, stop_ids=[FREE[2]]))
    rig.step()
    rig.propose(1, 6, FREE[1:5])
    (outcome,) = rig.step()
    assert (outcome.proposed, outcome.accepted, list(outcome.ids)) == (4, 2, FREE[1:3])
