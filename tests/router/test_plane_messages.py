"""Tensor planes as peers and people see them, over real streams."""

import asyncio

import pytest

from protos.ssd.v1 import admin_pb2, draft_pb2, target_pb2, types_pb2
from tests.router.fakes import LIMIT_S, FakeDraft, FakeTarget
from tests.router.running import running

GLOO = types_pb2.PlaneAbility(host="here", kinds=[types_pb2.PLANE_KIND_GLOO])


async def planes(router):
    return (await router.admin.GetServerInfo(admin_pb2.GetServerInfoRequest())).planes


async def until(router, condition):
    async with asyncio.timeout(LIMIT_S):
        while not condition(found := await planes(router)):
            pass
        return found


def report(plane, state, **fields):
    return [types_pb2.PlaneReport(plane=plane, state=state, **fields)]


async def test_both_ends_are_introduced_and_told_of_the_end(model):
    target, draft = FakeTarget(ability=GLOO), FakeDraft(ability=GLOO)
    async with running(model, [target], [draft], tensor_plane="gloo", plane_limit_s=1.5) as router:
        (plane,) = await planes(router)
        assert (plane.target, plane.draft) == (target.address, draft.address)
        assert (plane.kind, plane.state) == (types_pb2.PLANE_KIND_GLOO, types_pb2.PLANE_STATE_OPENING)
        opening = report(plane.epoch, types_pb2.PLANE_STATE_OPENING, rendezvous=":77")
        target.say(target_pb2.TargetServiceServeResponse(planes=opening))
        await draft.until(lambda: draft.all("planes"))
        (order,) = draft.all("planes")
        assert (order.plane, order.rendezvous, order.limit_s) == (plane.epoch, "127.0.0.1:77", 1.5)
        assert order.target == 1

        opened = report(plane.epoch, types_pb2.PLANE_STATE_OPEN, latency_us=50, bandwidth=2e9)
        draft.say(draft_pb2.DraftServiceServeResponse(planes=opened))
        target.say(target_pb2.TargetServiceServeResponse(planes=opened))
        (found,) = await until(router, lambda found: found[0].state == types_pb2.PLANE_STATE_OPEN)
        assert (found.latency_us, found.bandwidth, found.fallbacks) == (50, 2e9, 0)

        broken = report(plane.epoch, types_pb2.PLANE_STATE_BROKEN, reason="stalled")
        draft.say(draft_pb2.DraftServiceServeResponse(planes=broken))
        await target.until(lambda: list(target.all("plane_closes")) == [plane.epoch])
        (found,) = await planes(router)
        assert (found.kind, found.epoch) == (types_pb2.PLANE_KIND_INLINE, plane.epoch + 1)
        assert (found.reason, found.fallbacks) == ("gloo: stalled", 1)

        await draft.stop()
        assert not list(await until(router, lambda found: not found))


@pytest.mark.parametrize(
    ("wanted", "ability", "reason"),
    [
        ("nccl", GLOO, "the target cannot do nccl"),
        ("gloo", None, "the target cannot do gloo"),
        ("auto", GLOO, "a CPU is at one end"),
        ("inline", GLOO, "asked for"),
    ],
)
async def test_what_is_impossible_is_inline_and_says_why(model, wanted, ability, reason):
    target, draft = FakeTarget(ability=ability), FakeDraft(ability=ability)
    async with running(model, [target], [draft], tensor_plane=wanted) as router:
        (plane,) = await planes(router)
        assert (plane.kind, plane.reason) == (types_pb2.PLANE_KIND_INLINE, reason)
        assert not target.all("planes") and not draft.all("planes")
