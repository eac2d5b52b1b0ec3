"""However a call ends, target and draft are told, once and at once, and nothing is left behind in the router."""

import asyncio
import gc
import random

import grpc
import pytest
from google.rpc import error_details_pb2

from protos.ssd.v1 import admin_pb2, inference_pb2, types_pb2
from ssd.rpc.status import details_of
from tests.router.fakes import LIMIT_S, FakeDraft, FakeTarget, story
from tests.router.running import request, rest, running


async def load(router):
    return await router.admin.GetLoad(admin_pb2.GetLoadRequest())


async def test_a_client_that_leaves_frees_target_and_draft(model):
    target, draft = FakeTarget(), FakeDraft()
    async with running(model, [target], [draft]) as router:
        target.hold()
        call = router.inference.GenerateStream(request(max_tokens=500))
        await call.read()
        target.release(1)
        await call.read()
        call.cancel()
        await target.until(lambda: target.all("closes"))
        await draft.until(lambda: draft.all("closes"))
        assert target.all("closes") == [target.all("opens")[0].sequence]
        assert draft.all("closes") == [draft.all("opens")[0].sequence]
        assert not target.live
        assert (await load(router)).running == 0


async def test_a_client_may_leave_before_the_first_token(model):
    target = FakeTarget()
    async with running(model, [target]) as router:
        target.hold()
        call = asyncio.ensure_future(router.inference.Generate(request(max_tokens=500))._invocation_task)
        await target.until(lambda: target.live)
        call.cancel()
        unary = router.inference.Generate(request(max_tokens=500))
        await target.until(lambda: len(target.all("opens")) == 2)
        unary.cancel()
        await target.until(lambda: sorted(target.all("closes")) == [o.sequence for o in target.all("opens")])


async def test_a_sequence_that_the_target_ended_is_not_closed_there_again(model):
    target, draft = FakeTarget(), FakeDraft()
    async with running(model, [target], [draft]) as router:
        await router.inference.Generate(request(max_tokens=5))
        await draft.until(lambda: draft.all("closes"))
        # What the first generation might still have had to say would come before what the second one says.
        await router.inference.Generate(request(max_tokens=5))
        assert target.all("closes") == []
        assert len(draft.all("closes")) <= 2


async def test_an_expired_deadline_ends_the_work(model):
    target = FakeTarget()
    async with running(model, [target]) as router:
        target.hold()
        target.release(1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await router.inference.Generate(request(max_tokens=500), timeout=0.3)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await target.until(lambda: not target.live)
        assert len(target.all("closes")) == 1
        assert (await load(router)).running == 0


async def test_a_deadline_also_holds_while_no_target_is_there(model):
    target = FakeTarget()
    async with running(model, [target]) as router:
        await target.stop()
        await router.until_health("ssd.v1.InferenceService", False)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await router.inference.Generate(request(max_tokens=5), timeout=0.3)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert (await load(router)).running == 0


async def test_a_time_limit_also_holds_while_no_target_is_there(model):
    target = FakeTarget()
    async with running(model, [target]) as router:
        await target.stop()
        await router.until_health("ssd.v1.InferenceService", False)
        whole = await router.inference.Generate(request(max_tokens=5, time_limit_s=0.2))
        assert (whole.text, whole.finish.reason) == ("", types_pb2.FINISH_REASON_TIME_LIMIT)


async def test_without_any_target_a_request_waits_and_is_then_unavailable(model):
    target = FakeTarget()
    async with running(model, [target], target_wait_s=0.3) as router:
        await target.stop()
        await router.until_health("ssd.v1.InferenceService", False)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await router.inference.Generate(request(max_tokens=5))
        error = caught.value
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert target.address in error.details()
        info = error_details_pb2.ErrorInfo()
        assert any(detail.Unpack(info) for detail in details_of(error).details)
        assert info.reason == "NO_TARGET"


async def test_two_hundred_calls_left_at_any_moment_leave_nothing_behind(model):
    rng = random.Random(1)
    target, draft = FakeTarget(script=story(1)), FakeDraft()
    async with running(model, [target], [draft], max_live=1000) as router:
        tasks_before = len(asyncio.all_tasks())

        async def one(index):
            deadline = rng.choice([None, 0.001, 0.01, 0.05])
            call = router.inference.GenerateStream(request(max_tokens=60), timeout=deadline)
            try:
                for _ in range(rng.randrange(12)):
                    await call.read()
                    await asyncio.sleep(0)
            except grpc.aio.AioRpcError as error:
                assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            finally:
                call.cancel()

        for start in range(0, 200, 40):
            await asyncio.gather(*(one(index) for index in range(start, start + 40)))
        opened = {message.sequence for message in target.all("opens")}
        await target.until(lambda: not target.live)
        await draft.until(lambda: {o.sequence for o in draft.all("opens")} == set(draft.all("closes")))
        assert len(target.all("closes")) == len(set(target.all("closes")))
        assert len(draft.all("closes")) == len(set(draft.all("closes")))
        assert set(target.all("closes")) | set(target.ended) >= opened
        now = await load(router)
        assert (now.running, now.waiting, now.prompt_tokens, now.cached_tables) == (0, 0, 0, 0)
        gc.collect()
        async with asyncio.timeout(LIMIT_S):
            while len(asyncio.all_tasks()) > tasks_before:
                await asyncio.sleep(0)


SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536)]


async def test_a_reader_that_stalls_is_given_up_and_holds_up_nobody(model):
    target = FakeTarget(context=1 << 20)
    slow = request(max_tokens=100_000, output=inference_pb2.OutputParameters(logprobs=20))
    settings = {"max_live_tokens": 1 << 20, "stream_buffer": 8, "stream_stall_s": 0.4, "options": SMALL_WINDOW}
    async with running(model, [target], **settings) as router:
        stalled = router.inference.GenerateStream(slow)
        await stalled.read()
        other = await router.inference.Generate(request(max_tokens=300))
        assert other.usage.completion_tokens == 300
        await target.until(lambda: target.all("closes"))
        assert target.all("closes") == [target.all("opens")[0].sequence]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rest(stalled)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "does not read" in caught.value.details()
        assert (await load(router)).running == 0


async def test_a_reader_that_never_takes_the_last_message_is_given_up_too(model):
    target = FakeTarget(context=1 << 20, script=story(2000))
    slow = request(max_tokens=20_000, output=inference_pb2.OutputParameters(logprobs=20))
    settings = {"max_live_tokens": 1 << 20, "stream_stall_s": 0.3, "options": SMALL_WINDOW}
    async with running(model, [target], **settings) as router:
        stalled = router.inference.GenerateStream(slow)
        await stalled.read()
        await target.until(lambda: target.ended)
        async with asyncio.timeout(LIMIT_S):
            while (await load(router)).running:
                pass  # each question is a call to the router, which gives it time
        with pytest.raises(grpc.aio.AioRpcError):
            await rest(stalled)


async def test_a_slow_reader_that_keeps_reading_gets_everything_in_few_messages(model):
    target = FakeTarget(script=story(1))
    async with running(model, [target], stream_buffer=4, stream_stall_s=5.0) as router:
        call = router.inference.GenerateStream(request(max_tokens=400))
        messages = [await call.read()]
        await target.until(lambda: target.ended)
        messages += await rest(call)
    assert sum(len(message.token_ids) for message in messages) == 400
