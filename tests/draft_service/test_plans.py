"""The governor's plans, and what it is told of the draft's own steps."""

from collections import Counter

import pytest

from protos.ssd.v1 import draft_pb2, types_pb2
from protos.ssd.v1.draft_pb2 import DraftPlan
from ssd.models.loader import LoadedModel
from tests.draft_service.harness import STREAM, Reference, Request, Wire, make_engine, uniform

PROMPT = (15, 16, 17, 15, 99)
BASE = len(PROMPT)
AR, SD, SSD, AUTO = types_pb2.MODE_AR, types_pb2.MODE_SD, types_pb2.MODE_SSD, types_pb2.MODE_AUTO
REQUEST = Request(PROMPT, {"temperature": 1.0}, k=4, fan_out=2, mode=AUTO)


def test_auto_anticipates_until_a_plan_comes(wire: Wire) -> None:
    wire.open(REQUEST, need=True)
    wire.run()
    assert wire.proposals and wire.tables


def test_under_a_plan_of_ar_ids_are_kept_up_with_and_nothing_is_run(wire: Wire, reference: Reference) -> None:
    wire.open(REQUEST)
    wire.run()
    passes = wire.engine.load().steps
    wire.advance(BASE, (3,), plan=DraftPlan(mode=AR))
    wire.advance(BASE + 1, tuple(range(30, 60)))
    wire.run()
    assert wire.engine.load().steps == passes
    wire.advance(BASE + 31, (), need=True)
    wire.step()
    assert [list(p.ids) for p in wire.proposals] == [[]], "whoever waits all the same is told not to"
    wire.advance(BASE + 31, (4,), plan=DraftPlan(mode=SSD, k=4, depth=4), need=True)
    wire.run()
    text = (*PROMPT, 3, *range(30, 60), 4)
    assert tuple(wire.proposals[-1].ids) == reference.continuation(REQUEST, text, 4)
    assert wire.tables[-1].base_len == len(text)


def test_a_plan_of_ar_stops_a_tree_and_a_proposal_at_once(wire: Wire, reference: Reference) -> None:
    wire.open(REQUEST, 1)
    wire.step()
    wire.step()
    wire.advance(BASE, (), 1, plan=DraftPlan(mode=AR))
    wire.engine.check()
    wire.open(Request((1, 2, 3), k=4, mode=AUTO), 2, need=True)
    wire.step()
    wire.advance(3, (), 2, plan=DraftPlan(mode=AR))
    wire.step()
    assert [len(p.ids) for p in wire.proposals] == [1], "what there is of it is better than silence"
    assert wire.engine.wake_at(0.0) is None and not wire.tables and wire.engine.load().stale_drops == 0


def test_under_a_plan_of_sd_there_are_proposals_only(wire: Wire, reference: Reference) -> None:
    wire.open(REQUEST)
    wire.advance(BASE, (3,), plan=DraftPlan(mode=SD, k=6), need=True)
    wire.run()
    wire.advance(BASE + 1, (4,), need=True)
    wire.run()
    assert not wire.tables
    assert [tuple(p.ids) for p in wire.proposals] == [
        reference.continuation(REQUEST, (*PROMPT, 3), 6),
        reference.continuation(REQUEST, (*PROMPT, 3, 4), 6),
    ]


@pytest.mark.parametrize(("k", "depth"), [(5, 2), (3, 3), (2, 5), (99, 99)])
def test_a_plan_sets_k_depth_and_fan_out_until_the_next(loaded: LoadedModel, k: int, depth: int) -> None:
    wire = Wire(make_engine(loaded, max_k=6))
    wire.open(REQUEST)
    wire.run()
    fan_out = [3, 2, *[0] * (min(depth, 6) - 2), 4]
    plan = DraftPlan(mode=SSD, k=k, depth=depth, fan_out=fan_out)
    wire.advance(BASE, (3,), plan=plan, need=True)
    wire.run()
    assert len(wire.proposals[-1].ids) == min(k, 6)
    assert {len(branch.ids) for branch in wire.tables[-1].branches} == {min(depth, 6)}
    assert len(wire.tables[-1].branches) == sum(fan_out), "shared out likewise for other lengths"
    hit = wire.tables[-1].branches[0]
    emitted = (*wire.tables[-1].proposal[: hit.accepted], hit.token)
    wire.advance(BASE + 1, emitted, depth=min(depth, 6))
    wire.run()
    counts = Counter(branch.accepted for branch in wire.tables[-1].branches)
    assert [counts[accepted] for accepted in range(min(depth, 6) + 1)] == fan_out
    text = (*PROMPT, 3, *emitted)
    wire.advance(len(text), (9,), plan=DraftPlan(mode=SSD, k=2, depth=1), need=True)
    wire.run()
    assert len(wire.proposals[-1].ids) == 2
    assert len(wire.tables[-1].branches) == 2 * 3, "the rule that it was opened with"
    assert {len(branch.ids) for branch in wire.tables[-1].branches} == {1}


def test_a_plan_that_comes_again_late_changes_nothing(wire: Wire) -> None:
    wire.open(REQUEST)
    wire.advance(BASE, (3,), plan=DraftPlan(mode=AR))
    wire.advance(BASE + 1, (4,), plan=DraftPlan(mode=SSD, k=3, depth=3))
    wire.advance(BASE, (3,), plan=DraftPlan(mode=AR))
    wire.run()
    assert wire.tables[-1].base_len == BASE + 2 and wire.engine.load().stale_drops == 1


def test_a_plan_that_comes_with_a_gap_is_followed_after_the_resync(wire: Wire) -> None:
    wire.open(REQUEST)
    wire.advance(BASE + 3, (3,), plan=DraftPlan(mode=SD, k=2), need=True)
    wire.resync((*PROMPT, 1, 2, 3, 4), need=True)
    wire.run()
    assert wire.need_resync and not wire.tables and len(wire.proposals[-1].ids) == 2


def test_a_plan_of_ssd_begins_a_table_where_there_is_none(wire: Wire) -> None:
    wire.open(Request(PROMPT, k=4, mode=SD, fan_out=uniform(1)))
    wire.run()
    assert not wire.tables
    wire.advance(BASE, (), plan=DraftPlan(mode=SSD, k=4, depth=3))
    wire.run()
    assert wire.tables[-1].base_len == BASE and len(wire.tables[-1].branches) == 5


def test_kv_of_a_sequence_that_is_left_alone_goes_to_those_who_need_it(
    loaded: LoadedModel, reference: Reference
) -> None:
    wire = Wire(make_engine(loaded, blocks=12))
    idle = Request(tuple(range(70, 100)), k=2, fan_out=1, mode=AUTO)
    wire.open(idle, 1)
    wire.run()
    wire.advance(30, (1,), 1, plan=DraftPlan(mode=AR))
    wire.open(Request(tuple(range(20)), k=2, mode=SD), 2, need=True)
    wire.run()
    assert not wire.refused and wire.proposals[-1].sequence == 2
    wire.send(closes=[2])
    wire.advance(31, (2,), 1, plan=DraftPlan(mode=SD, k=2), need=True)
    wire.run()
    assert tuple(wire.proposals[-1].ids) == reference.continuation(idle, (*idle.prompt, 1, 2), 2)


def test_messages_tell_how_long_the_pass_took_and_what_was_in_it(loaded: LoadedModel) -> None:
    engine = make_engine(loaded)
    engine.handle(STREAM, draft_pb2.DraftServiceServeRequest(opens=[REQUEST.message(1), REQUEST.message(2)]))
    timings, now = [], 10.0
    while engine.wake_at(now) is not None:
        engine.begin(now)
        now += 0.25
        for response in engine.finish(now).values():
            assert response.tables
            timings.append(response.timing)
        now += 1.0
    assert [(t.rows, t.tokens, t.prefill, t.step_ms) for t in timings] == [(2, 20, False, 250.0)] * 2
    passes = engine.load().steps
    engine.handle(STREAM, draft_pb2.DraftServiceServeRequest(advances=[draft_pb2.Advance(sequence=1, base_len=9)]))
    (response,) = engine.finish(now).values()
    assert not response.HasField("timing") and engine.load().steps == passes, "no pass, no time"


def test_prefill_is_told_apart(loaded: LoadedModel) -> None:
    engine = make_engine(loaded, token_budget=1000)
    request = Request(tuple(range(200)), k=1, mode=SD)
    engine.handle(STREAM, draft_pb2.DraftServiceServeRequest(opens=[request.message(1, need=True)]))
    engine.begin(1.0)
    timing = engine.finish(1.5)[STREAM].timing
    assert (timing.rows, timing.tokens, timing.prefill, timing.step_ms) == (1, 200, True, 500.0)
