"""Bad requests: each gets its status and names its field, over real gRPC, before any target hears of it."""

import asyncio

import grpc
import pytest
from google.rpc import error_details_pb2

from protos.ssd.v1 import admin_pb2, inference_pb2, types_pb2
from ssd.rpc.options import MAX_MESSAGE_BYTES
from ssd.rpc.status import details_of
from tests.router.fakes import FakeTarget
from tests.router.running import request, running
from tests.toy import VOCAB

INVALID = grpc.StatusCode.INVALID_ARGUMENT
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED
CONTEXT = 64
NAN, INF = float("nan"), float("inf")
REJECTION = types_pb2.VERIFICATION_REJECTION
UNIFORM, EXPLICIT = types_pb2.FAN_OUT_RULE_UNIFORM, types_pb2.FAN_OUT_RULE_EXPLICIT
GEOMETRIC, MEASURED = types_pb2.FAN_OUT_RULE_GEOMETRIC, types_pb2.FAN_OUT_RULE_MEASURED
FanOut = types_pb2.FanOut


def sampling(**fields):
    return {"sampling": types_pb2.SamplingParameters(**fields)}


def stop(**fields):
    return {"stop": inference_pb2.StopParameters(**fields)}


def output(**fields):
    return {"output": inference_pb2.OutputParameters(**fields)}


def speculation(**fields):
    return {"speculation": inference_pb2.SpeculationParameters(**fields)}


def chat(*messages):
    return {
        "chat": inference_pb2.ChatInput(messages=[inference_pb2.ChatMessage(role=r, content=c) for r, c in messages])
    }


def ids(*token_ids):
    return {"token_ids": inference_pb2.TokenIds(ids=token_ids)}


BAD = [
    ("text", INVALID, {"text": ""}),
    ("text", INVALID, {"text": "x" * CONTEXT}),
    ("token_ids", INVALID, ids()),
    ("token_ids", INVALID, ids(1, 2, VOCAB)),
    ("token_ids", INVALID, ids(2**32 - 1)),
    ("token_ids", INVALID, ids(*range(CONTEXT))),
    ("chat.messages", INVALID, chat()),
    ("chat.messages[1].role", INVALID, chat(("user", "hi"), ("", "there"))),
    ("chat", INVALID, chat(("user", "x" * CONTEXT))),
    ("request_id", INVALID, {"request_id": "x" * 129}),
    ("model", grpc.StatusCode.NOT_FOUND, {"model": "another"}),
    ("n", INVALID, {"n": 0}),
    ("n", UNIMPLEMENTED, {"n": 2}),
    ("time_limit_s", INVALID, {"time_limit_s": 0.0}),
    ("time_limit_s", INVALID, {"time_limit_s": -1.0}),
    ("time_limit_s", INVALID, {"time_limit_s": NAN}),
    ("time_limit_s", INVALID, {"time_limit_s": INF}),
    ("sampling.temperature", INVALID, sampling(temperature=NAN)),
    ("sampling.temperature", INVALID, sampling(temperature=INF)),
    ("sampling.temperature", INVALID, sampling(temperature=-0.1)),
    ("sampling.temperature", INVALID, sampling(temperature=101)),
    ("sampling.top_k", INVALID, sampling(top_k=-1)),
    ("sampling.top_p", INVALID, sampling(top_p=0)),
    ("sampling.top_p", INVALID, sampling(top_p=1.5)),
    ("sampling.top_p", INVALID, sampling(top_p=NAN)),
    ("sampling.min_p", INVALID, sampling(min_p=-0.1)),
    ("sampling.min_p", INVALID, sampling(min_p=1.1)),
    ("sampling.repetition_penalty", INVALID, sampling(repetition_penalty=0)),
    ("sampling.repetition_penalty", INVALID, sampling(repetition_penalty=-INF)),
    ("sampling.presence_penalty", INVALID, sampling(presence_penalty=2.1)),
    ("sampling.frequency_penalty", INVALID, sampling(frequency_penalty=-2.1)),
    ("sampling.logit_bias", INVALID, sampling(logit_bias={VOCAB: 1.0})),
    ("sampling.logit_bias", INVALID, sampling(logit_bias={1: 101.0})),
    ("sampling.logit_bias", INVALID, sampling(logit_bias={1: -INF})),
    ("stop.max_tokens", INVALID, stop(max_tokens=0)),
    ("stop.max_tokens", INVALID, stop(max_tokens=CONTEXT)),
    ("stop.min_tokens", INVALID, stop(max_tokens=4, min_tokens=5)),
    ("stop.min_tokens", INVALID, stop(min_tokens=CONTEXT)),
    ("stop.texts[1]", INVALID, stop(texts=["ok", ""])),
    ("stop.texts[0]", INVALID, stop(texts=["x" * 1025])),
    ("stop.texts", INVALID, stop(texts=["x"] * 17)),
    ("stop.token_ids", INVALID, stop(token_ids=[VOCAB])),
    ("stop.token_ids", INVALID, stop(token_ids=[1] * 65)),
    ("output.logprobs", INVALID, output(logprobs=21)),
    ("output.prompt_logprobs", UNIMPLEMENTED, output(prompt_logprobs=0)),
    ("output.json_schema", UNIMPLEMENTED, output(json_schema="{}")),
    ("output.regex", UNIMPLEMENTED, output(regex="a*")),
    ("output.grammar", UNIMPLEMENTED, output(grammar="root ::= 'a'")),
    ("speculation.mode", INVALID, speculation(mode=9)),
    ("speculation.k", INVALID, speculation(k=0)),
    ("speculation.k", INVALID, speculation(k=9)),
    ("speculation.fan_out", INVALID, speculation(fan_out=0)),
    ("speculation.fan_out", INVALID, speculation(fan_out=17)),
    ("speculation.verification", INVALID, speculation(verification=9)),
    ("speculation.saguaro_c", INVALID, speculation(verification=REJECTION, saguaro_c=1.1)),
    ("speculation.saguaro_c", INVALID, speculation(verification=REJECTION, saguaro_c=NAN)),
    ("speculation.saguaro_c", INVALID, speculation(saguaro_c=1.0)),
    ("speculation.fallback", INVALID, speculation(fallback=9)),
    ("speculation.drafts", INVALID, speculation(drafts=0)),
    ("speculation.drafts", INVALID, speculation(drafts=5)),
    ("speculation.fan_out_rule", INVALID, speculation(fan_out=2, fan_out_rule=FanOut(rule=UNIFORM, fan_out=2))),
    ("speculation.fan_out_rule.rule", INVALID, speculation(fan_out_rule=FanOut(rule=9))),
    ("speculation.fan_out_rule.fan_out", INVALID, speculation(fan_out_rule=FanOut(rule=UNIFORM, fan_out=17))),
    ("speculation.fan_out_rule.budget", INVALID, speculation(fan_out_rule=FanOut(rule=UNIFORM, budget=2))),
    ("speculation.fan_out_rule.budget", INVALID, speculation(fan_out_rule=FanOut(budget=2))),
    ("speculation.fan_out_rule.budget", INVALID, speculation(fan_out_rule=FanOut(rule=MEASURED, budget=0))),
    ("speculation.fan_out_rule.budget", INVALID, speculation(fan_out_rule=FanOut(rule=MEASURED, budget=65))),
    ("speculation.fan_out_rule.exponent", INVALID, speculation(fan_out_rule=FanOut(rule=MEASURED, exponent=1))),
    ("speculation.fan_out_rule.exponent", INVALID, speculation(fan_out_rule=FanOut(rule=GEOMETRIC, exponent=0))),
    ("speculation.fan_out_rule.exponent", INVALID, speculation(fan_out_rule=FanOut(rule=GEOMETRIC, exponent=INF))),
    ("speculation.fan_out_rule.acceptance", INVALID, speculation(fan_out_rule=FanOut(rule=GEOMETRIC, acceptance=-1))),
    ("speculation.fan_out_rule.after_hit", INVALID, speculation(fan_out_rule=FanOut(rule=EXPLICIT))),
    ("speculation.fan_out_rule.after_hit", INVALID, speculation(fan_out_rule=FanOut(rule=EXPLICIT, after_hit=[0, 0]))),
    ("speculation.fan_out_rule.after_hit", INVALID, speculation(fan_out_rule=FanOut(rule=EXPLICIT, after_hit=[1] * 6))),
    ("speculation.fan_out_rule.after_hit", INVALID, speculation(fan_out_rule=FanOut(rule=EXPLICIT, after_hit=[65]))),
    (
        "speculation.fan_out_rule.after_miss",
        INVALID,
        speculation(fan_out_rule=FanOut(rule=EXPLICIT, after_hit=[1], after_miss=[2**32 - 1])),
    ),
    ("speculation.fan_out", INVALID, speculation(mode=types_pb2.MODE_AUTO, fan_out=3)),
    (
        "speculation.fan_out_rule.rule",
        INVALID,
        speculation(mode=types_pb2.MODE_AUTO, fan_out_rule=FanOut(rule=UNIFORM)),
    ),
]


async def refusal(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def fields_of(error):
    """The violated fields in the details of a status."""
    found = []
    for detail in details_of(error).details:
        bad = error_details_pb2.BadRequest()
        if detail.Unpack(bad):
            found += [violation.field for violation in bad.field_violations]
    return found


async def test_every_bad_field_is_refused_with_its_status_and_its_name(model):
    target = FakeTarget(context=CONTEXT)
    async with running(model, [target], model_name="toy") as router:
        for field, status, fields in BAD:
            for call in (router.inference.Generate, router.collect):
                error = await refusal(call(request(**fields)))
                assert (field, error.code()) == (field, status), error.details()
                assert error.details().startswith(f"{field}:"), (field, error.details())
                if status is INVALID:
                    assert fields_of(error) == [field]
        assert target.heard == []


async def test_a_request_without_any_input_is_refused(model):
    async with running(model, [FakeTarget()]) as router:
        error = await refusal(router.inference.Generate(inference_pb2.GenerateRequest()))
        assert (error.code(), fields_of(error)) == (INVALID, ["input"])
        error = await refusal(router.inference.Tokenize(inference_pb2.TokenizeRequest()))
        assert (error.code(), fields_of(error)) == (INVALID, ["input"])


async def test_other_calls_refuse_bad_fields_too(model):
    async with running(model, [FakeTarget()]) as router:
        inference = router.inference
        for call, name in (
            (inference.Tokenize(inference_pb2.TokenizeRequest(model="another", text="x")), "NOT_FOUND"),
            (inference.Detokenize(inference_pb2.DetokenizeRequest(model="another")), "NOT_FOUND"),
            (inference.GetModelInfo(inference_pb2.GetModelInfoRequest(model="another")), "NOT_FOUND"),
            (inference.Tokenize(inference_pb2.TokenizeRequest(text="")), "INVALID_ARGUMENT"),
            (inference.Detokenize(inference_pb2.DetokenizeRequest(ids=[VOCAB])), "INVALID_ARGUMENT"),
            (router.admin.InspectSpeculation(admin_pb2.InspectSpeculationRequest(request_id="?")), "NOT_FOUND"),
        ):
            assert (await refusal(call)).code().name == name


async def test_a_live_request_id_cannot_be_used_again_until_it_has_ended(model):
    target = FakeTarget()
    async with running(model, [target]) as router:
        target.hold()
        first = router.inference.GenerateStream(request(request_id="one", max_tokens=3))
        await first.read()
        error = await refusal(router.inference.Generate(request(request_id="one", max_tokens=3)))
        assert error.code() == grpc.StatusCode.ALREADY_EXISTS
        assert "one" in error.details()
        target.free()
        while await first.read() is not grpc.aio.EOF:
            pass
        again = await router.inference.Generate(request(request_id="one", max_tokens=3))
        assert again.start.request_id == "one"


async def test_a_refusal_of_the_target_reaches_the_client_with_the_public_field(model):
    target = FakeTarget(refusal=types_pb2.Refused(status=3, message="max_tokens: never fits"))
    async with running(model, [target], wait=False) as router:
        await target.until(lambda: target.heard)
        target.refusal = None
        await router.until_health("ssd.v1.InferenceService", True)
        target.refusal = types_pb2.Refused(status=3, message="max_tokens: never fits")
        error = await refusal(router.inference.Generate(request(max_tokens=4)))
        assert (error.code(), fields_of(error)) == (INVALID, ["stop.max_tokens"])
        target.refusal = types_pb2.Refused(status=8, message="all 4 sequences are in use")
        error = await refusal(router.inference.Generate(request(max_tokens=4)))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert retry_after(error) > 0
        target.refusal = types_pb2.Refused(status=13, message="no token can be drawn")
        error = await refusal(router.inference.Generate(request(max_tokens=4)))
        assert error.code() == grpc.StatusCode.INTERNAL


def retry_after(error):
    """Seconds of RetryInfo."""
    for detail in details_of(error).details:
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            return retry.retry_delay.ToTimedelta().total_seconds()
    return None


async def test_too_many_requests_are_refused_with_a_time_to_retry(model):
    target = FakeTarget()
    async with running(model, [target], max_live=2) as router:
        target.hold()
        calls = [router.inference.GenerateStream(request(max_tokens=3)) for _ in range(2)]
        for call in calls:
            await call.read()
        error = await refusal(router.inference.Generate(request(max_tokens=3)))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert retry_after(error) == 1.0
        target.free()
        for call in calls:
            while await call.read() is not grpc.aio.EOF:
                pass
        assert (await router.inference.Generate(request(max_tokens=3))).token_ids


async def test_too_many_tokens_are_refused_now_and_more_than_ever_fit_for_good(model):
    target = FakeTarget()
    async with running(model, [target], max_live_tokens=100) as router:
        target.hold()
        call = router.inference.GenerateStream(request("x" * 10, max_tokens=60))
        await call.read()
        error = await refusal(router.inference.Generate(request("x" * 10, max_tokens=30)))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert retry_after(error) == 1.0
        error = await refusal(router.inference.Generate(request("x" * 10, max_tokens=91)))
        assert (error.code(), fields_of(error)) == (INVALID, ["stop.max_tokens"])
        call.cancel()
        await target.until(lambda: not target.live)
        target.free()
        assert (await router.inference.Generate(request("x" * 10, max_tokens=30))).token_ids


@pytest.mark.parametrize("mebibytes", [3.9, 4.1])
async def test_long_prompts_pass(model, mebibytes):
    count = int(mebibytes * 2**20)
    target = FakeTarget(context=1 << 24, kv_tokens=1 << 24)
    prompt = inference_pb2.TokenIds(ids=[65] * count)
    async with running(model, [target], max_live_tokens=1 << 24) as router:
        whole = await router.inference.Generate(request(token_ids=prompt, max_tokens=3))
        assert whole.usage.prompt_tokens == count
        assert len(target.all("opens")[0].ids) == count


async def test_a_prompt_above_the_message_limit_is_refused_and_the_limit_is_named(model):
    big = MAX_MESSAGE_BYTES + 2**20
    target = FakeTarget()
    async with running(model, [target], options=[("grpc.max_send_message_length", -1)]) as router:
        error = await refusal(router.inference.Generate(request("x" * big)))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(MAX_MESSAGE_BYTES) in error.details()
        assert (await asyncio.wait_for(router.inference.Generate(request(max_tokens=1)), 20)).token_ids
