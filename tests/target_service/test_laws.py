"""Laws by reference: looked up when they are needed; without them a prediction is a miss."""

import random

import pytest

from protos.ssd.v1 import types_pb2
from ssd.proto_convert import outcome_table_message, proposal_message
from ssd.speculation.law import LawRef, SparseLaw
from ssd.speculation.outcomes import Branch, OutcomeTable
from ssd.speculation.proposal import Proposal
from ssd.tensor_plane.packing import PackedLaws, pack
from ssd.tensor_plane.store import LawStore
from tests.target_service.rig import STREAM, Rig, opening
from tests.target_service.test_rejection import COUNT, PROMPT, begun, guess, surprise, wrong
from tests.world.planes import Receiving

PLANE = 7


@pytest.fixture
def planes() -> Receiving:
    receiving = Receiving()
    receiving.stores[PLANE] = LawStore()
    return receiving


@pytest.fixture
def rig(planes) -> Rig:
    """One sequence that waits for a proposal after its first token."""
    rig = Rig(planes=planes)
    planes.wake = lambda stream: rig.send(stream)
    rig.open(opening(1, PROMPT, rejection=True, max_tokens=8))
    rig.step()
    return rig


def refs(bundle: int, count: int, first: int = 0) -> tuple[LawRef, ...]:
    return tuple(LawRef(PLANE, bundle, first + i) for i in range(count))


def propose(rig: Rig, ids, laws) -> None:
    made = Proposal(len(PROMPT) + len(rig.ids(1)), tuple(ids), tuple(laws))
    rig.send(proposals=[proposal_message(1, made)])


def arrive(planes: Receiving, bundle: int, *laws: SparseLaw) -> None:
    if planes.stores[PLANE].put(bundle, PackedLaws(pack(laws)) if laws else None):
        planes.wake(STREAM)


def drops(rig: Rig) -> dict[str, int]:
    return dict(rig.engine.load().law_drops)


def text(rig: Rig) -> tuple[int, ...]:
    return (*PROMPT, *rig.ids(1))


def test_a_proposal_is_verified_with_the_laws_of_its_bundle(rig, planes):
    ids, laws = guess(1, text(rig), 2)
    arrive(planes, 1, *laws)
    propose(rig, ids, refs(1, 2))
    (outcome,) = rig.step()
    assert outcome.proposed == 2 and not drops(rig)


def test_a_bundle_that_comes_after_its_proposal_is_waited_for(rig, planes):
    ids, laws = guess(1, text(rig), 2)
    propose(rig, ids, refs(1, 2))
    assert not rig.step(), "the row waits"
    arrive(planes, 1, *laws)
    (outcome,) = rig.step()
    assert outcome.proposed == 2 and drops(rig) == {"late": 1}


def test_a_bundle_that_never_comes_costs_the_wait_and_no_more(rig):
    propose(rig, *[(3, 4), refs(1, 2)])
    assert not rig.step()
    (outcome,) = rig.step(2.0)
    assert outcome.proposed == 0
    rig.run()
    assert len(rig.ids(1)) == 8


def test_a_plane_that_breaks_ends_the_wait_for_what_was_on_it(rig, planes):
    propose(rig, (3, 4), refs(1, 2))
    assert not rig.step(), "the row waits"
    planes.stores[PLANE].close()
    planes.wake(STREAM)
    (outcome,) = rig.step()
    assert outcome.proposed == 0


@pytest.mark.parametrize("how", ["unknown plane", "closed", "evicted", "damaged", "no such row"])
def test_laws_that_are_gone_make_a_miss_without_a_wait(rig, planes, how):
    ids, laws = guess(1, text(rig), 2)
    wanted = refs(2, 2)
    if how == "unknown plane":
        wanted = tuple(LawRef(99, 1, i) for i in range(2))
    elif how == "closed":
        planes.close(STREAM, PLANE)
    elif how == "evicted":
        planes.stores[PLANE] = LawStore(most_bundles=1)
        arrive(planes, 2, *laws)
        arrive(planes, 3, *laws)
    elif how == "damaged":
        arrive(planes, 2)
    else:
        arrive(planes, 2, *laws)
        wanted = refs(2, 2, first=5)
    propose(rig, ids, wanted)
    assert drops(rig) == {"plane closed" if how in ("unknown plane", "closed") else "gone": 1}
    assert rig.engine.load().stale_drops == 1
    (outcome,) = rig.step()
    assert outcome.proposed == 0


def test_as_many_tokens_are_verified_as_have_laws(rig, planes):
    ids, laws = guess(1, text(rig), 3)
    other = SparseLaw((ids[2] + 1,), (1.0,))
    arrive(planes, 1, laws[0], laws[1], other)
    propose(rig, ids, refs(1, 3))
    (outcome,) = rig.step()
    assert outcome.proposed == 2


def test_laws_may_come_partly_inline(rig, planes):
    ids, laws = guess(1, text(rig), 3)
    arrive(planes, 1, laws[1])
    propose(rig, ids, (laws[0], *refs(1, 1), laws[2]))
    (outcome,) = rig.step()
    assert outcome.proposed == 3


def test_a_hit_needs_its_laws(rig, planes):
    ids, laws = guess(1, text(rig), 1)
    arrive(planes, 1, *laws)
    propose(rig, ids, refs(1, 1))
    branches = [Branch(k, token, (5, 6), refs(2, 2)) for k in range(2) for token in range(23)]
    table = OutcomeTable(len(text(rig)), tuple(ids), 2, tuple(branches))
    rig.send(tables=[outcome_table_message(1, table)])
    (outcome,) = rig.step()
    assert not outcome.hit and outcome.next_depth == 0
    assert drops(rig) == {"late": 1}
    arrive(planes, 2, SparseLaw((5, 7), (1.0, 1.0)), SparseLaw((6, 9), (1.0, 1.0)))
    (outcome,) = rig.step()
    assert outcome.proposed == 2 and outcome.source == types_pb2.PROPOSAL_SOURCE_TABLE


def test_only_laws_of_what_is_verified_are_unpacked(rig, planes):
    ids, laws = guess(1, text(rig), 1)
    arrive(planes, 1, *laws)
    propose(rig, ids, refs(1, 1))
    asked: list[LawRef] = []
    law = planes.law
    planes.law = lambda stream, ref: asked.append(ref) or law(stream, ref)
    arrive(planes, 2, *[SparseLaw((5,), (1.0,))] * 46)
    branches = [Branch(k, token, (5,), refs(2, 1, first=23 * k + token)) for k in range(2) for token in range(23)]
    rig.send(tables=[outcome_table_message(1, OutcomeTable(len(text(rig)), tuple(ids), 1, tuple(branches)))])
    (outcome,) = rig.step()
    assert outcome.hit and sum(ref.bundle == 2 for ref in asked) == 1


def test_an_end_of_the_stream_ends_its_planes(rig, planes):
    rig.engine.close_stream(STREAM)
    assert not planes.stores


def test_orders_reach_the_planes_and_reports_the_router(rig, planes):
    rig.send(planes=[types_pb2.PlaneOrder(plane=9, kind=types_pb2.PLANE_KIND_GLOO)])
    (response,) = rig.engine.finish(rig.now).values()
    assert [(one.plane, one.state) for one in response.planes] == [(9, types_pb2.PLANE_STATE_OPENING)]
    rig.send(plane_closes=[9, 1234])
    assert 9 not in planes.stores


def test_an_engine_without_planes_refuses_orders():
    rig = Rig()
    rig.send(planes=[types_pb2.PlaneOrder(plane=9)])
    (response,) = rig.engine.finish(rig.now).values()
    assert response.planes[0].state == types_pb2.PLANE_STATE_BROKEN and response.planes[0].reason


@pytest.mark.parametrize("mixed_up", [False, True])
def test_losses_and_delays_leave_the_targets_law(planes, mixed_up):
    """And the test would notice laws that are not the tokens' own."""
    rng = random.Random(11)
    rig, texts = begun(planes=planes)
    planes.wake = lambda stream: rig.send(stream)
    late: list[tuple[int, list[SparseLaw]]] = []
    for i, one in enumerate(texts):
        ids, laws = guess(i, one, 2)
        laws = wrong(laws) if mixed_up else laws
        made = Proposal(len(one), tuple(ids), refs(i + 1, 2))
        fate = rng.random()
        if fate < 0.1:
            late.append((i + 1, laws))
        elif fate < 0.8:
            arrive(planes, i + 1, *laws)
        rig.send(proposals=[proposal_message(i, made)])
        if late and rng.random() < 0.3:
            for bundle, kept_back in late:
                arrive(planes, bundle, *kept_back)
            late.clear()
    rig.step()
    rig.run()
    proposed = sum(outcome.proposed for outcomes in rig.outcomes.values() for outcome in outcomes)
    assert COUNT < proposed < 2 * COUNT
    assert surprise(rig) > 10 if mixed_up else surprise(rig) < 4
