"""The router as a process: start, health, reflection, drain."""

import asyncio
import os
import signal
import subprocess
import sys

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from protos.ssd.v1 import admin_pb2, inference_pb2, types_pb2
from router.main import serve
from ssd.config import RouterConfig
from ssd.rpc.server import StartupError
from tests.router.fakes import HOST, LIMIT_S, FakeDraft, FakeTarget, free_port, model_directory, text_of
from tests.router.running import request, rest, running

INFERENCE, ADMIN, DRAFT = "ssd.v1.InferenceService", "ssd.v1.AdminService", "ssd.v1.Draft"


async def status_of(router, name):
    answer = await router.health.Check(health_pb2.HealthCheckRequest(service=name), wait_for_ready=True)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


async def ended(router):
    """The end of the router's process: its status, or what it raised."""
    return await asyncio.wait_for(router.task, LIMIT_S)


def test_the_router_never_imports_torch():
    code = "import sys, router.main; print(sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "'router'" in done.stdout
    assert not {"'torch'", "'transformers'", "'numpy'"} & set(done.stdout.strip("[]\n").split(", "))


async def test_health_says_what_is_ready_and_when(model):
    target, draft = FakeTarget(), FakeDraft()
    async with running(model, [target], [draft], later=[target, draft], wait=False) as router:
        assert await status_of(router, "") == "SERVING"
        await router.until_health(INFERENCE, False)
        await router.until_health(ADMIN, True)
        assert await status_of(router, DRAFT) == "NOT_SERVING"
        target.hold()
        await target.start()
        await target.until(lambda: target.live)
        # The target is connected, but has not generated anything yet.
        assert await status_of(router, INFERENCE) == "NOT_SERVING"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await router.inference.Generate(request(max_tokens=3))
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        target.free()
        await router.until_health(INFERENCE, True)
        assert target.all("opens")[0].limits.max_tokens == 1
        assert await status_of(router, DRAFT) == "NOT_SERVING"
        assert (await router.inference.Generate(request(max_tokens=3))).text == text_of(3)

        await draft.start()
        await router.until_health(DRAFT, True)
        await draft.stop()
        await router.until_health(DRAFT, False)
        assert await status_of(router, INFERENCE) == "SERVING"

        await target.stop()
        await router.until_health(INFERENCE, False)
        again = FakeTarget(port=target.port, digest=target.digest, epoch=7)
        await again.start()
        try:
            await router.until_health(INFERENCE, True)
            assert again.rounds == 1
        finally:
            await again.stop()


async def test_a_first_generation_that_fails_is_tried_again(model):
    target = FakeTarget(refusal=types_pb2.Refused(status=8, message="not yet"))
    async with running(model, [target], wait=False) as router:
        await target.until(lambda: target.all("opens"))
        assert await status_of(router, INFERENCE) == "NOT_SERVING"
        target.refusal = None
        await router.until_health(INFERENCE, True)


async def test_before_the_tokenizer_is_there_every_call_is_unavailable(model, monkeypatch):
    loading = asyncio.Event()

    async def resolve(name):
        await loading.wait()
        return model

    monkeypatch.setattr("router.main.resolve", resolve)
    async with running(model, [FakeTarget()], wait=False) as router:
        await router.until_health(ADMIN, True)
        for call in (
            router.inference.Generate(request(max_tokens=1)),
            router.inference.Tokenize(inference_pb2.TokenizeRequest(text="x")),
            router.inference.Abort(inference_pb2.AbortRequest(request_id="x")),
            router.admin.GetLoad(admin_pb2.GetLoadRequest()),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        loading.set()
        await router.until_health(INFERENCE, True)


async def test_reflection_lists_and_describes_the_services(model):
    async with running(model, [FakeTarget()]) as router:

        def ask():
            with grpc.insecure_channel(router.config.listen) as channel:
                database = ProtoReflectionDescriptorDatabase(channel)
                file = database.FindFileContainingSymbol("ssd.v1.InferenceService.GenerateStream")
                return set(database.get_services()), file.name

        services, file = await asyncio.to_thread(ask)
    assert {INFERENCE, ADMIN, "grpc.health.v1.Health"} <= services
    assert file == "ssd/v1/inference.proto"
    assert DRAFT not in services


async def test_sigterm_lets_streams_end_and_refuses_new_ones(model):
    target = FakeTarget()
    async with running(model, [target], drain_s=15.0) as router:
        target.hold()
        call = router.inference.GenerateStream(request(max_tokens=9))
        await call.read()
        watch = router.health.Watch(health_pb2.HealthCheckRequest(service=INFERENCE))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        os.kill(os.getpid(), signal.SIGTERM)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await router.inference.Generate(request(max_tokens=1))
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        target.free()
        text = "".join(message.text for message in await rest(call))
        # Whoever only watches does not hold up the end.
        assert await asyncio.wait_for(router.task, 5) == 0
    assert text == text_of(9)


async def test_streams_that_outlast_the_drain_end_with_unavailable(model):
    target = FakeTarget()
    async with running(model, [target], drain_s=0.3) as router:
        target.hold()
        call = router.inference.GenerateStream(request(max_tokens=9))
        await target.until(lambda: target.live)
        sequence = target.all("opens")[0].sequence
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rest(call)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in caught.value.details()
        assert await ended(router) == 0
        await target.until(lambda: not target.connected)
        assert sequence not in target.live


async def test_a_second_signal_ends_the_drain(model):
    target = FakeTarget()
    async with running(model, [target], drain_s=60.0) as router:
        target.hold()
        call = router.inference.GenerateStream(request(max_tokens=9))
        await call.read()
        watch = router.health.Watch(health_pb2.HealthCheckRequest(service=INFERENCE))
        await watch.read()
        os.kill(os.getpid(), signal.SIGTERM)
        await watch.read()
        os.kill(os.getpid(), signal.SIGTERM)
        assert await ended(router) == 0


async def test_a_signal_before_anything_is_ready_ends_the_router(model):
    async with running(model, [FakeTarget()], wait=False) as router:
        await router.until_health(ADMIN, True)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await ended(router) == 0


async def test_a_port_in_use_is_refused_and_named():
    target = FakeTarget()
    await target.start()
    try:
        with pytest.raises(StartupError, match=target.address):
            await serve(RouterConfig(listen=target.address))
    finally:
        await target.stop()


@pytest.mark.parametrize("name", ["nowhere", "/nowhere/at/all"])
async def test_a_missing_model_is_refused_and_named(name):
    with pytest.raises(StartupError, match=f"model: .*{name}"):
        await serve(RouterConfig(listen=f"{HOST}:{free_port()}", model=name))


async def test_a_model_without_a_tokenizer_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(StartupError, match=r"model: no tokenizer\.json"):
        await serve(RouterConfig(listen=f"{HOST}:{free_port()}", model=str(tmp_path)))


@pytest.mark.parametrize("wrong", ["target", "draft"])
async def test_a_peer_with_another_tokenizer_is_refused_at_the_start_and_both_are_named(model, wrong):
    target, draft = FakeTarget(), FakeDraft()
    odd = target if wrong == "target" else draft
    odd.digest, odd.source = "0" * 64, "/models/odd"
    async with running(model, [target], [draft], wait=False) as router:
        with pytest.raises(StartupError) as caught:
            await ended(router)
    assert "/models/odd" in str(caught.value)
    assert str(model) in str(caught.value)
    assert wrong in str(caught.value)


async def test_a_fault_inside_ends_the_process_instead_of_leaving_a_healthy_shell(model, monkeypatch):
    target = FakeTarget()
    async with running(model, [target]) as router:

        def broken(self, key, response):
            raise RuntimeError("a bug")

        monkeypatch.setattr("router.coordinator.Coordinator.on_target", broken)
        call = router.inference.GenerateStream(request(max_tokens=9))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rest(call)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        with pytest.raises(RuntimeError, match="a bug"):
            await ended(router)


async def test_a_name_other_than_the_directorys_can_be_given(tmp_path):
    directory = model_directory(tmp_path / "some-model")
    async with running(directory, [FakeTarget()], model_name="") as router:
        assert (await router.inference.Generate(request(model="some-model", max_tokens=1))).start.model == "some-model"
