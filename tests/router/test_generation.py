"""Generate and GenerateStream over real gRPC, with a scripted target."""

import asyncio

import grpc
import pytest

from protos.ssd.v1 import admin_pb2, inference_pb2, types_pb2
from tests.router.fakes import FakeTarget, story, text_of
from tests.router.running import add, request, rest, running
from tests.toy import EOS


async def test_a_stream_brings_start_text_ids_finish_and_usage(model):
    async with running(model, [FakeTarget()]) as router:
        messages = [
            m async for m in router.inference.GenerateStream(request("hello", max_tokens=10, request_id="mine"))
        ]
    whole = inference_pb2.GenerateResponse()
    for message in messages:
        add(whole, message)
    assert messages[0].HasField("start")
    assert [m.HasField("usage") for m in messages].count(True) == 1
    assert messages[-1].finish.reason == types_pb2.FINISH_REASON_LENGTH
    assert (whole.start.request_id, whole.start.model, whole.start.prompt_tokens) == ("mine", "toy", 5)
    assert whole.text == text_of(10)
    assert list(whole.token_ids) == list(text_of(10).encode())
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.rounds) == (5, 10, 4)
    assert whole.usage.mode == types_pb2.MODE_SSD


@pytest.mark.parametrize(
    "stop",
    [
        inference_pb2.StopParameters(),
        inference_pb2.StopParameters(texts=["fox"]),
        inference_pb2.StopParameters(texts=["fox"], include_stop_text=True, min_tokens=25),
        inference_pb2.StopParameters(token_ids=[ord("q")]),
    ],
)
async def test_generate_is_the_stream_collected(model, stop):
    output = inference_pb2.OutputParameters(logprobs=2)
    asked = request(stop=stop, max_tokens=90, sampling=types_pb2.SamplingParameters(seed=3), output=output)
    asked.request_id = "same"
    async with running(model, [FakeTarget(script=story(1))]) as router:
        stream = await router.collect(asked)
        unary = await router.inference.Generate(asked)
    assert unary == stream
    assert len(unary.logprobs) == len(unary.token_ids)


async def test_a_stop_text_closes_the_sequence_at_the_target(model):
    target = FakeTarget()
    async with running(model, [target]) as router:
        target.hold()
        call = asyncio.ensure_future(
            router.collect(request(stop=inference_pb2.StopParameters(texts=["quick "]), max_tokens=500))
        )
        target.release(8)
        whole = await asyncio.wait_for(call, 20)
        await target.until(lambda: target.all("closes"))
        assert whole.text == "the "
        assert whole.finish == inference_pb2.Finish(reason=types_pb2.FINISH_REASON_STOP, stop_text="quick ")
        assert target.all("closes") == [target.all("opens")[0].sequence]
        assert not target.live


async def test_an_end_id_is_counted_and_reported_but_has_no_text(model):
    target = FakeTarget(script=lambda opened: [[104, 105], [33, EOS]])
    async with running(model, [target]) as router:
        whole = await router.inference.Generate(request(max_tokens=50))
    assert whole.text == "hi!"
    assert list(whole.token_ids) == [104, 105, 33, EOS]
    assert (whole.finish.reason, whole.finish.stop_id) == (types_pb2.FINISH_REASON_STOP, EOS)
    assert whole.usage.completion_tokens == 4


async def test_the_target_gets_the_request_as_it_was_resolved(model):
    target = FakeTarget()
    stop = inference_pb2.StopParameters(max_tokens=4, min_tokens=2, token_ids=[7], ignore_eos=True)
    sampling = types_pb2.SamplingParameters(temperature=0.5, top_k=4, seed=99)
    speculation = inference_pb2.SpeculationParameters(mode=types_pb2.MODE_SD, k=5)
    asked = request(stop=stop, sampling=sampling, speculation=speculation, output={"logprobs": 3})
    async with running(model, [target]) as router:
        whole = await router.inference.Generate(asked)
        (opened,) = target.all("opens")
    assert list(opened.ids) == list(b"hello")
    assert opened.prompt_len == 5
    assert opened.sampling == sampling
    assert opened.limits == types_pb2.TokenLimits(max_tokens=4, min_tokens=2, stop_ids=[7], ignore_eos=True)
    assert (opened.logprobs, opened.mode, opened.k, opened.drafting) == (3, types_pb2.MODE_SD, 5, False)
    assert whole.start.seed == 99


async def test_a_seed_is_drawn_and_echoed_when_none_is_given(model):
    target = FakeTarget()
    async with running(model, [target]) as router:
        seeds = {(await router.inference.Generate(request(max_tokens=1))).start.seed for _ in range(3)}
        assert {opened.sampling.seed for opened in target.all("opens")} == seeds
    assert len(seeds) == 3


async def test_default_max_tokens_is_the_servers_and_ends_at_the_context(model):
    target = FakeTarget(context=20)
    async with running(model, [target], max_tokens=12) as router:
        for prompt in ("hello", "a longer prompt"):
            await router.inference.Generate(request(prompt))
        assert [opened.limits.max_tokens for opened in target.all("opens")] == [12, 5]


async def test_chat_goes_through_the_models_template(model):
    target = FakeTarget()
    chat = inference_pb2.ChatInput(messages=[inference_pb2.ChatMessage(role="user", content="hi")])
    async with running(model, [target]) as router:
        await router.inference.Generate(request(chat=chat, max_tokens=1))
        tokens = (await router.inference.Tokenize(inference_pb2.TokenizeRequest(chat=chat))).ids
        asked = inference_pb2.DetokenizeRequest(ids=tokens, special_tokens=True)
        text = (await router.inference.Detokenize(asked)).text
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert list(target.all("opens")[0].ids) == list(tokens)


async def test_special_tokens_are_kept_in_the_text_on_demand(model):
    script = lambda opened: [[104, EOS, 105]]  # noqa: E731
    output = inference_pb2.OutputParameters(special_tokens=True)
    stop = inference_pb2.StopParameters(ignore_eos=True, max_tokens=3)
    async with running(model, [FakeTarget(script=script)]) as router:
        assert (await router.inference.Generate(request(stop=stop))).text == "hi"
        assert (await router.inference.Generate(request(stop=stop, output=output))).text == "h<|eos|>i"


async def test_abort_ends_the_stream_with_its_text_and_usage_and_is_idempotent(model):
    target = FakeTarget()
    async with running(model, [target]) as router:
        target.hold()
        call = router.inference.GenerateStream(request(max_tokens=500, request_id="r"))
        whole = inference_pb2.GenerateResponse()
        add(whole, await call.read())
        target.release(1)
        add(whole, await call.read())
        abort = inference_pb2.AbortRequest(request_id="r")
        assert (await router.inference.Abort(abort)).was_live
        for message in await rest(call):
            add(whole, message)
        assert not (await router.inference.Abort(abort)).was_live
        assert not (await router.inference.Abort(inference_pb2.AbortRequest(request_id="never seen"))).was_live
        await target.until(lambda: not target.live)
        assert len(target.all("closes")) == 1
        assert await call.code() == grpc.StatusCode.OK
    assert whole.text == text_of(3)
    assert whole.finish.reason == types_pb2.FINISH_REASON_CANCELLED
    assert whole.usage.completion_tokens == 3


async def test_a_time_limit_returns_the_text_so_far(model):
    target = FakeTarget()
    async with running(model, [target]) as router:
        target.hold()
        target.release(2)
        whole = await router.inference.Generate(request(max_tokens=500, time_limit_s=0.3))
        await target.until(lambda: not target.live)
    assert whole.text == text_of(6)
    assert whole.finish.reason == types_pb2.FINISH_REASON_TIME_LIMIT
    assert len(target.all("closes")) == 1


async def test_model_info_and_load_of_a_quiet_router(model):
    async with running(model, [FakeTarget(context=100, source="/models/x")]) as router:
        info = await router.inference.GetModelInfo(inference_pb2.GetModelInfoRequest(model="toy"))
        load = await router.admin.GetLoad(admin_pb2.GetLoadRequest())
        server = await router.admin.GetServerInfo(admin_pb2.GetServerInfoRequest())
    assert (info.model.name, info.model.source, info.model.context_length) == ("toy", "/models/x", 100)
    assert not info.HasField("draft")
    assert (info.max_k, info.max_fan_out, info.max_prompt_tokens, info.max_stop_texts) == (8, 16, 99, 16)
    assert info.defaults == inference_pb2.SpeculationParameters(
        mode=types_pb2.MODE_SSD,
        k=4,
        fan_out=3,
        verification=types_pb2.VERIFICATION_COUPLED,
        fallback=types_pb2.FALLBACK_AUTO,
        drafts=1,
    )
    assert (load.running, load.waiting, load.prompt_tokens, load.degraded) == (0, 0, 0, True)
    assert [peer.state for peer in server.targets] == [admin_pb2.PEER_STATE_READY]
    assert server.epoch
