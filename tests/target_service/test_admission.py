"""What cannot be served is refused by name, and disturbs nobody."""

import math

import pytest
import torch

from protos.ssd.v1 import target_pb2, types_pb2
from tests.target_service.rig import AR, VOCAB, Rig, opening, plain_ids

INVALID, EXHAUSTED, INTERNAL = 3, 8, 13


def without_seed() -> target_pb2.TargetOpen:
    message = opening(1, [1])
    message.sampling.ClearField("seed")
    return message


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (opening(1, []), "token_ids"),
        (opening(1, [1, VOCAB]), "token_ids"),
        (opening(1, [1] * 256), "token_ids"),
        (opening(1, [1] * 250, max_tokens=7), "max_tokens"),
        (opening(1, [1, 2], prompt_len=0), "prompt_len"),
        (opening(1, [1, 2], prompt_len=3), "prompt_len"),
        (opening(1, [1], max_tokens=0), "max_tokens"),
        (opening(1, [1, 2, 3], prompt_len=1, max_tokens=2), "max_tokens"),
        (opening(1, [1], max_tokens=3, min_tokens=4), "min_tokens"),
        (opening(1, [1], stop_ids=[VOCAB]), "stop_ids"),
        (opening(1, [1], stop_ids=range(VOCAB), min_tokens=1), "stop_ids"),
        (opening(1, [1], sampling={"temperature": math.nan}), "temperature"),
        (opening(1, [1], sampling={"temperature": -0.1}), "temperature"),
        (opening(1, [1], sampling={"temperature": math.inf}), "temperature"),
        (opening(1, [1], sampling={"top_k": -1}), "top_k"),
        (opening(1, [1], sampling={"top_p": 0.0}), "top_p"),
        (opening(1, [1], sampling={"min_p": 1.5}), "min_p"),
        (opening(1, [1], sampling={"repetition_penalty": 0.0}), "repetition_penalty"),
        (opening(1, [1], sampling={"presence_penalty": 3.0}), "presence_penalty"),
        (opening(1, [1], sampling={"frequency_penalty": math.nan}), "frequency_penalty"),
        (opening(1, [1], sampling={"logit_bias": {VOCAB: 1.0}}), "logit_bias"),
        (opening(1, [1], sampling={"logit_bias": {2: -math.inf}}), "logit_bias"),
        (opening(1, [1], logprobs=21), "logprobs"),
        (opening(1, [1], mode=types_pb2.MODE_UNSPECIFIED), "mode"),
        (opening(1, [1], k=9), "k"),
        (opening(1, [1], k=0), "k"),
        (without_seed(), "seed"),
    ],
)
def test_a_bad_open_is_refused_with_the_name_of_its_field(message, field):
    rig = Rig()
    rig.open(message)
    assert rig.engine.wake_at(rig.now) == rig.now
    rig.step()
    assert rig.refused[1].status == INVALID
    assert rig.refused[1].message.startswith(f"{field}: ")
    assert rig.engine.wake_at(rig.now) is None


def test_what_can_never_fit_the_kv_room_is_refused_and_what_just_fits_runs():
    rig = Rig(blocks=5, block_size=2)
    rig.open(opening(1, [1] * 10), opening(2, [1] * 4, max_tokens=7, mode=AR))
    fits = opening(3, [1] * 4, max_tokens=6, mode=AR)
    rig.open(fits)
    rig.run()
    assert rig.refused[1].message.startswith("token_ids: ")
    assert rig.refused[2].message.startswith("max_tokens: ")
    assert rig.ids(3) == plain_ids(fits)


def test_more_sequences_than_allowed_are_refused_until_one_ends():
    rig = Rig(max_sequences=2)
    rig.open(*(opening(i, [i], max_tokens=2, mode=AR) for i in range(3)))
    rig.run()
    assert rig.refused.keys() == {2}
    assert rig.refused[2].status == EXHAUSTED
    rig.open(opening(2, [2], max_tokens=2, mode=AR))
    rig.run()
    assert len(rig.ids(2)) == 2


def test_a_refused_open_leaves_others_alone():
    rig, good = Rig(), opening(1, [5, 6], mode=AR)
    rig.open(good)
    rig.step()
    rig.open(opening(2, [VOCAB]))
    rig.run()
    assert rig.ids(1) == plain_ids(good)


def test_a_row_from_which_nothing_can_be_drawn_is_given_up_alone():
    rig = Rig()
    good, broken = opening(1, [5, 6], mode=AR), opening(2, [7, 8], mode=AR)
    rig.open(good, broken)
    rig.step()
    healthy = rig.runner.run

    def run(rows):
        logits = healthy(rows)
        for i, row in enumerate(rows):
            if row.table is rig.engine.roster.live[1, 2].table:
                logits[i] = torch.nan
        return logits

    rig.runner.run = run
    rig.step()
    rig.runner.run = healthy
    rig.run()
    assert rig.refused[2].status == INTERNAL
    assert sorted(rig.closed) == [1, 2]
    assert rig.ids(1) == plain_ids(good)
    assert rig.pool.in_use == 0


def test_a_penalty_too_small_to_divide_by_ends_only_its_own_sequence():
    rig = Rig()
    good = opening(1, [5, 6], mode=AR)
    rig.open(good, opening(2, [5, 6], mode=AR, sampling={"repetition_penalty": 5e-324}))
    rig.run()
    assert rig.ids(1) == plain_ids(good)
    assert rig.pool.in_use == 0


def test_the_welcome_states_the_limits():
    rig = Rig(blocks=8, block_size=4, max_sequences=3, max_k=5)
    welcome = rig.engine.welcome(epoch=9)
    assert (welcome.epoch, welcome.max_k, welcome.max_sequences, welcome.max_tokens) == (9, 5, 3, 32)
    assert welcome.model.name == "bench"
