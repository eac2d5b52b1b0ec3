"""Limits: context, KV room, number of sequences, parameters. Nothing crashes, everything comes back."""

import math

import pytest

from protos.ssd.v1 import draft_pb2, types_pb2
from ssd.models.loader import LoadedModel
from ssd.rpc.mail import Status
from tests.draft_service.harness import BLOCK, Reference, Request, Wire, make_engine, uniform

PROMPT = (5, 4, 3, 2, 1, 99)


def geometric(**values: float) -> types_pb2.FanOut:
    return types_pb2.FanOut(rule=types_pb2.FAN_OUT_RULE_GEOMETRIC, budget=9, **values)


def statuses(wire: Wire) -> list[tuple[int, Status]]:
    return [(refused.sequence, Status(refused.status)) for refused in wire.refused]


@pytest.mark.parametrize("length", [30, 31, 32, 33, 2000])
def test_a_sequence_at_the_drafts_context_is_refused_and_not_read_past_it(loaded: LoadedModel, length: int) -> None:
    wire = Wire(make_engine(loaded, max_context=32))
    wire.open(Request((7,) * length, limits={"max_tokens": 5000}), need=True)
    wire.run()
    if length < 31:
        assert not wire.refused and len(wire.proposals[0].ids) == 1
    else:
        assert statuses(wire) == [(1, Status.OUT_OF_RANGE)]
        assert wire.engine.load().kv_blocks_used == 0


def test_a_sequence_that_grows_to_the_drafts_context_is_drafted_for_until_there(
    loaded: LoadedModel, reference: Reference
) -> None:
    wire = Wire(make_engine(loaded, max_context=24))
    request = Request(PROMPT, {"temperature": 1.0}, k=3)
    text = reference.continuation(request, PROMPT, 30)
    wire.open(request)
    wire.run()
    for i in range(30):
        ids = (*PROMPT, *text[:i])
        if len(ids) + 1 >= 24:
            break
        wire.advance(len(ids), text[i : i + 1], need=True)
        wire.run()
        room = 24 - len(ids) - 2
        if room:
            assert 0 < len(wire.proposals[-1].ids) <= min(3, room)
            assert tuple(wire.proposals[-1].ids) == text[i + 1 : i + 1 + len(wire.proposals[-1].ids)]
    assert statuses(wire) == [(1, Status.OUT_OF_RANGE)]
    wire.advance(23, (1,), need=True)
    wire.run()
    assert wire.engine.load().stale_drops == 1 and wire.engine.load().kv_blocks_used == 0


def test_the_models_own_context_is_never_exceeded(loaded: LoadedModel) -> None:
    limit = loaded.config.max_position
    wire = Wire(make_engine(loaded, blocks=400, max_context=10 * limit))
    wire.open(Request((7,) * (limit - 3), limits={"max_tokens": 5000}), need=True)
    wire.run()
    assert len(wire.proposals[0].ids) == 2 and not wire.refused


def test_without_room_for_a_table_there_are_still_proposals(loaded: LoadedModel, reference: Reference) -> None:
    wire = Wire(make_engine(loaded, blocks=4))
    request = Request(PROMPT, k=4, fan_out=2)
    wire.open(request, need=True)
    wire.run()
    assert tuple(wire.proposals[0].ids) == reference.continuation(request, PROMPT, 4)
    assert not wire.tables and not wire.refused
    assert wire.engine.load().preemptions == 1


def test_a_trunk_takes_the_scratch_of_a_table_before_anyone_is_refused(loaded: LoadedModel) -> None:
    request = Request(PROMPT, k=4, fan_out=1)
    scratch = -(-5 * 4 // BLOCK)
    wire = Wire(make_engine(loaded, blocks=2 + scratch + 1))
    wire.open(request, 1)
    while not wire.tables:
        wire.step()
    wire.open(Request((31, 32, 33, 34, 35), k=4, mode=types_pb2.MODE_SD), 2, need=True)
    wire.run()
    assert not wire.refused
    assert [p.sequence for p in wire.proposals] == [2]
    assert wire.engine.load().preemptions == 1
    assert [table.depth for table in wire.tables] == [2], "the dropped table is not finished"
    wire.advance(len(PROMPT), (wire.tables[0].branches[0].token,), 1, need=True)
    wire.run()
    assert tuple(wire.proposals[-1].ids[:2]) == wire.tables[0].branches[0].ids, "but what it knew is still known"


def test_a_table_waits_for_the_scratch_of_another(loaded: LoadedModel) -> None:
    scratch = -(-10 * 2 // BLOCK)
    wire = Wire(make_engine(loaded, blocks=2 * 2 + scratch + 1))
    for number in (1, 2):
        wire.open(Request((number, 2, 3), k=2, fan_out=3), number)
    wire.run()
    assert len(wire.tables) == 2 and wire.engine.load().preemptions == 0


def test_without_room_for_the_trunk_a_sequence_is_refused(loaded: LoadedModel) -> None:
    wire = Wire(make_engine(loaded, blocks=4))
    wire.open(Request(PROMPT), 1, need=True)
    wire.open(Request(tuple(range(100, 140))), 2, need=True)
    wire.run()
    assert statuses(wire) == [(2, Status.RESOURCE_EXHAUSTED)]
    assert [p.sequence for p in wire.proposals] == [1]
    wire.open(Request((8, 9), k=1), 2, need=True)
    wire.run()
    assert wire.proposals[-1].sequence == 2, "a refused number may be opened again"
    wire.send(closes=[1, 2])
    wire.run()
    assert wire.engine.load().kv_blocks_used == 0


def test_one_sequence_too_many_is_refused(loaded: LoadedModel) -> None:
    wire = Wire(make_engine(loaded, max_sequences=2))
    for number in (1, 2, 3):
        wire.open(Request(PROMPT), number)
    wire.run()
    assert statuses(wire) == [(3, Status.RESOURCE_EXHAUSTED)]
    wire.send(closes=[1])
    wire.open(Request(PROMPT), 4)
    wire.run()
    assert wire.tables[-1].base_len == len(PROMPT) and len(wire.refused) == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"ids": []}, "ids"),
        ({"ids": [320], "prompt_len": 1}, "ids"),
        ({"prompt_len": 0}, "prompt_len"),
        ({"prompt_len": 7}, "prompt_len"),
        ({"k": 0}, "k"),
        ({"fan_out": uniform(0)}, "fan_out.fan_out"),
        ({"fan_out": types_pb2.FanOut(fan_out=3)}, "fan_out.rule"),
        ({"fan_out": types_pb2.FanOut(rule=types_pb2.FAN_OUT_RULE_EXPLICIT)}, "fan_out.after_hit"),
        ({"fan_out": types_pb2.FanOut(rule=types_pb2.FAN_OUT_RULE_EXPLICIT, after_hit=[0])}, "fan_out.after_hit"),
        ({"fan_out": types_pb2.FanOut(rule=types_pb2.FAN_OUT_RULE_MEASURED)}, "fan_out.budget"),
        ({"fan_out": geometric(acceptance=math.nan)}, "fan_out.acceptance"),
        ({"fan_out": geometric(acceptance=1.5)}, "fan_out.acceptance"),
        ({"fan_out": geometric(exponent=0.0)}, "fan_out.exponent"),
        ({"fan_out": geometric(exponent=math.inf)}, "fan_out.exponent"),
        ({"parts": 2, "part": 2}, "part"),
        ({"parts": 1000}, "parts"),
        ({"verification": types_pb2.VERIFICATION_REJECTION, "saguaro_c": 1.5}, "saguaro_c"),
        ({"verification": types_pb2.VERIFICATION_REJECTION, "saguaro_c": math.nan}, "saguaro_c"),
        ({"mode": types_pb2.MODE_AR}, "mode"),
        ({"mode": types_pb2.MODE_UNSPECIFIED}, "mode"),
        ({"mode": 77}, "mode"),
        ({"limits": types_pb2.TokenLimits()}, "max_tokens"),
        ({"limits": types_pb2.TokenLimits(max_tokens=3, stop_ids=[999])}, "stop_ids"),
        ({"sampling": types_pb2.SamplingParameters()}, "seed"),
        ({"sampling": types_pb2.SamplingParameters(seed=1, temperature=float("nan"))}, "temperature"),
        ({"sampling": types_pb2.SamplingParameters(seed=1, logit_bias={400: 1.0})}, "logit_bias"),
    ],
)
def test_a_bad_field_is_refused_by_name(wire: Wire, change: dict, field: str) -> None:
    message = Request(PROMPT).message()
    for name, value in change.items():
        message.ClearField(name)
        message.MergeFrom(draft_pb2.DraftOpen(**{name: value}))
    wire.send(opens=[message])
    wire.run()
    assert statuses(wire) == [(1, Status.INVALID_ARGUMENT)]
    assert wire.refused[0].message.startswith(f"{field}:")
    assert wire.engine.load().kv_blocks_used == 0


@pytest.mark.parametrize("how", ["advance", "resync"])
def test_a_committed_id_that_the_draft_does_not_know_ends_its_part(wire: Wire, how: str) -> None:
    wire.open(Request(PROMPT))
    wire.run()
    if how == "advance":
        wire.advance(len(PROMPT), (3, 5000), need=True)
    else:
        wire.resync((*PROMPT, 3, 5000), need=True)
    wire.run()
    assert statuses(wire) == [(1, Status.INVALID_ARGUMENT)] and wire.engine.load().kv_blocks_used == 0


def test_a_resync_that_contradicts_the_prompts_length_is_refused(wire: Wire) -> None:
    wire.open(Request(PROMPT))
    wire.resync((9, 9))
    wire.run()
    assert statuses(wire) == [(1, Status.INVALID_ARGUMENT)]


def test_parameters_that_overflow_the_logits_refuse_their_own_sequence_only(wire: Wire, reference: Reference) -> None:
    good = Request(PROMPT, {"temperature": 1.0}, k=3)
    wire.open(good, 1, need=True)
    wire.open(Request(PROMPT, {"repetition_penalty": 5e-324}, k=3), 2, need=True)
    wire.run()
    assert statuses(wire) == [(2, Status.INVALID_ARGUMENT)]
    assert tuple(wire.proposals[0].ids) == reference.continuation(good, PROMPT, 3)
    assert wire.tables[-1].depth == 3


def test_close_gives_every_block_back_at_once_and_says_so(wire: Wire) -> None:
    for number in (1, 2, 3):
        wire.open(Request((number, *PROMPT)), number, need=number == 2)
    for _ in range(5):
        wire.step()
    assert wire.engine.load().kv_blocks_used > 0
    wire.send(closes=[1, 2, 3, 3])
    assert wire.engine.load().kv_blocks_used == 0
    wire.run()
    assert wire.closed == [1, 2, 3]


def test_the_end_of_a_stream_gives_every_block_back_at_once(wire: Wire) -> None:
    for number in (1, 2, 3):
        wire.open(Request((number, *PROMPT)), number, need=number == 2)
    for _ in range(5):
        wire.step()
    wire.engine.close_stream(wire.stream)
    wire.engine.check()
    assert wire.engine.load().kv_blocks_used == 0
    assert wire.engine.wake_at(0.0) is None


def test_an_open_after_its_own_close_revives_nothing(wire: Wire) -> None:
    wire.send(closes=[1])
    wire.open(Request(PROMPT), 1)
    wire.open(Request(PROMPT), 2)
    wire.open(Request(PROMPT), 2)
    wire.run()
    assert wire.engine.load().running == 1 and wire.engine.load().stale_drops == 2
