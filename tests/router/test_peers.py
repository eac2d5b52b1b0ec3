"""Targets and drafts that come, go, hang and do not fit, over real gRPC."""

import asyncio

import grpc
import pytest

from protos.ssd.v1 import admin_pb2, inference_pb2, target_pb2, types_pb2
from tests.router.fakes import LIMIT_S, FakeDraft, FakeTarget, story, text_of
from tests.router.running import add, request, rest, running
from tests.toy import EOS


async def start_stream(router, target, tokens, **fields):
    """A stream that has brought `tokens` tokens while the target holds still."""
    target.hold()
    call = router.inference.GenerateStream(request(max_tokens=30, **fields))
    whole = inference_pb2.GenerateResponse()
    add(whole, await call.read())
    while len(whole.token_ids) < tokens:
        target.release(1)
        add(whole, await call.read())
    return call, whole


async def server_info(router):
    return await router.admin.GetServerInfo(admin_pb2.GetServerInfoRequest())


async def until_state(router, address, state):
    async with asyncio.timeout(LIMIT_S):
        while True:
            info = await server_info(router)
            peers = {peer.address: peer for peer in (*info.targets, *info.drafts)}
            if peers[address].state == state:
                return peers[address]


async def test_a_lost_target_is_replaced_in_mid_stream_without_a_lost_or_repeated_token(model):
    first, second = FakeTarget(script=story(3)), FakeTarget(script=story(2))
    async with running(model, [first, second], later=[second]) as router:
        call, whole = await start_stream(router, first, 6)
        await second.start()
        await until_state(router, second.address, admin_pb2.PEER_STATE_READY)
        await first.stop()
        for message in await rest(call):
            add(whole, message)
        (replayed,) = second.all("opens")
    assert whole.text == text_of(30)
    assert whole.finish.reason == types_pb2.FINISH_REASON_LENGTH
    assert whole.usage.completion_tokens == 30
    assert replayed.prompt_len == 5
    assert bytes(replayed.ids) == b"hello" + text_of(6).encode()


async def test_the_only_target_may_come_back_within_the_wait(model):
    target = FakeTarget()
    async with running(model, [target]) as router:
        call, whole = await start_stream(router, target, 9)
        await target.stop()
        await router.until_health("ssd.v1.InferenceService", False)
        again = FakeTarget(port=target.port, digest=target.digest, epoch=2)
        await again.start()
        try:
            for message in await rest(call):
                add(whole, message)
            await router.until_health("ssd.v1.InferenceService", True)
        finally:
            await again.stop()
    assert whole.text == text_of(30)


async def test_what_a_former_target_still_says_is_dropped_and_counted(model):
    first = FakeTarget()
    async with running(model, [first]) as router:
        call, whole = await start_stream(router, first, 3)
        sequence = first.all("opens")[-1].sequence
        late = target_pb2.StepOutcome(sequence=sequence, base_len=5, ids=[1, 2, 3])
        first.say(target_pb2.TargetServiceServeResponse(outcomes=[late]))
        unknown = target_pb2.StepOutcome(sequence=999, base_len=8, ids=[1])
        first.say(target_pb2.TargetServiceServeResponse(outcomes=[unknown]))
        first.free()
        for message in await rest(call):
            add(whole, message)
        load = await router.admin.GetLoad(admin_pb2.GetLoadRequest())
    assert whole.text == text_of(30)
    assert load.stale_drops == 2


async def test_tokens_that_never_came_are_an_internal_error_after_those_that_did(model):
    target = FakeTarget()
    async with running(model, [target]) as router:
        call, whole = await start_stream(router, target, 3)
        sequence = target.all("opens")[-1].sequence
        ahead = target_pb2.StepOutcome(sequence=sequence, base_len=50, ids=[1])
        target.say(target_pb2.TargetServiceServeResponse(outcomes=[ahead]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rest(call)
        assert caught.value.code() == grpc.StatusCode.INTERNAL
        await target.until(lambda: target.all("closes"))
    assert whole.text == text_of(3)


async def test_a_silent_target_is_lost_after_the_timeout_and_replaced(model):
    first, second = FakeTarget(), FakeTarget()
    async with running(model, [first, second], later=[second], peer_timeout_s=0.3) as router:
        call, whole = await start_stream(router, first, 3)
        await second.start()
        await until_state(router, second.address, admin_pb2.PEER_STATE_READY)
        first.deaf = True
        for message in await rest(call):
            add(whole, message)
        peer = await until_state(router, first.address, admin_pb2.PEER_STATE_LOST)
        assert "silent" in peer.detail or "welcome" in peer.detail
    assert whole.text == text_of(30)


async def test_a_long_step_is_no_silence(model):
    target = FakeTarget(busy_ms=60_000)
    async with running(model, [target], peer_timeout_s=0.2) as router:
        call, whole = await start_stream(router, target, 3)
        before = (await server_info(router)).targets[0]
        # Longer than the timeout without a token, counted in the heartbeats that were answered meanwhile.
        for _ in range(10):
            await until_next_beat(router)
        target.free()
        for message in await rest(call):
            add(whole, message)
        after = (await server_info(router)).targets[0]
    assert whole.text == text_of(30)
    assert before.state == after.state == admin_pb2.PEER_STATE_READY
    assert len(target.all("opens")) == 1
    assert after.load.block_size == 16


async def until_next_beat(router):
    """Until a heartbeat has come back since."""
    before = (await server_info(router)).targets[0].rtt_ms
    async with asyncio.timeout(LIMIT_S):
        while (await server_info(router)).targets[0].rtt_ms == before:
            pass  # each question is a call to the router, which gives it time


async def test_a_lost_draft_changes_nothing_but_speed_and_rejoins(model):
    target, draft = FakeTarget(), FakeDraft()
    async with running(model, [target], [draft]) as router:
        await router.until_health("ssd.v1.Draft", True)
        call, whole = await start_stream(router, target, 3)
        assert target.all("opens")[0].drafting
        sequence = target.all("opens")[0].sequence
        await draft.stop()
        await target.until(lambda: target.all("drafting"))
        assert target.all("drafting")[-1] == target_pb2.SetDrafting(sequence=sequence, drafting=False)
        await router.until_health("ssd.v1.Draft", False)
        assert (await router.admin.GetLoad(admin_pb2.GetLoadRequest())).degraded
        target.release(1)
        add(whole, await call.read())

        back = FakeDraft(port=draft.port, digest=draft.digest, epoch=2)
        await back.start()
        try:
            await back.until(lambda: back.all("opens"))
            await router.until_health("ssd.v1.Draft", True)
            assert bytes(back.all("opens")[0].ids) == b"hello" + text_of(6).encode()
            proposal = types_pb2.Proposal(sequence=sequence, base_len=11, ids=[ord(c) for c in text_of(9)[6:]])
            back.say(back.response(proposals=[proposal]))
            await target.until(lambda: target.all("proposals"))
            assert target.all("drafting")[-1].drafting
            target.free()
            for message in await rest(call):
                add(whole, message)
            await back.until(lambda: back.all("closes"))
        finally:
            await back.stop()
    assert whole.text == text_of(30)


async def test_the_cache_of_a_live_request_can_be_looked_at(model):
    target, draft = FakeTarget(), FakeDraft()
    async with running(model, [target], [draft]) as router:
        await router.until_health("ssd.v1.Draft", True)
        call, _ = await start_stream(router, target, 3, request_id="look")
        sequence = target.all("opens")[0].sequence
        await draft.until(lambda: draft.all("advances"))
        table = types_pb2.OutcomeTable(
            sequence=sequence, base_len=8, branches=[types_pb2.Branch(accepted=0, id=7, ids=[8, 9])]
        )
        draft.say(draft.response(tables=[table]))
        await target.until(lambda: target.all("tables"))
        held = await router.admin.InspectSpeculation(admin_pb2.InspectSpeculationRequest(request_id="look"))
        call.cancel()
    assert target.all("tables") == [table]
    assert (held.sequence, held.committed_len, held.mode, held.drafting) == (sequence, 8, types_pb2.MODE_SSD, True)
    assert list(held.tables) == [table]
    assert (held.rounds, held.hits, held.misses) == (1, 0, 1)


async def test_requests_go_to_the_least_loaded_target(model):
    targets = [FakeTarget(), FakeTarget(), FakeTarget()]
    async with running(model, targets) as router:
        await asyncio.gather(*(until_state(router, t.address, admin_pb2.PEER_STATE_READY) for t in targets))
        for target in targets:
            target.hold()
        calls = [router.inference.GenerateStream(request(max_tokens=3)) for _ in range(9)]
        for call in calls:
            await call.read()
        for target in targets:
            await target.until(lambda target=target: len(target.live) == 3)
            target.free()
        for call in calls:
            await rest(call)


async def test_a_full_target_is_passed_over_for_another(model):
    full, free = FakeTarget(), FakeTarget()
    async with running(model, [full, free]) as router:
        for target in (full, free):
            await until_state(router, target.address, admin_pb2.PEER_STATE_READY)
        full.refusal = types_pb2.Refused(status=8, message="all sequences are in use")
        for _ in range(3):
            assert (await router.inference.Generate(request(max_tokens=6))).text == text_of(6)


async def test_a_draft_with_another_tokenizer_is_never_used_once_the_router_serves(model):
    target, draft = FakeTarget(), FakeDraft()
    async with running(model, [target], [draft]) as router:
        await draft.stop()
        wrong = FakeDraft(port=draft.port, digest="0" * 64, source="/models/wrong")
        await wrong.start()
        try:
            peer = await until_state(router, draft.address, admin_pb2.PEER_STATE_INCOMPATIBLE)
            assert "/models/wrong" in peer.detail
            assert str(model) in peer.detail
            assert (await router.inference.Generate(request(max_tokens=6))).text == text_of(6)
            assert wrong.heard == []
        finally:
            await wrong.stop()


async def test_a_target_with_other_weights_is_never_used(model):
    first, second = FakeTarget(), FakeTarget(vocab_size=300)
    async with running(model, [first, second], wait=False) as router:
        await asyncio.wait({router.task}, timeout=LIMIT_S)
        assert "another model" in str(router.task.exception())


async def test_end_ids_are_those_of_the_target(model):
    target = FakeTarget(script=lambda opened: [[104, EOS]])
    async with running(model, [target]) as router:
        whole = await router.inference.Generate(request(max_tokens=6))
    assert whole.finish.stop_id == EOS
