"""The real process shell around a toy model: gRPC, health, streams, drain, death."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.ssd.v1 import target_pb2, target_pb2_grpc, types_pb2
from ssd.config import EngineConfig, TargetConfig
from ssd.rpc.options import CHANNEL_OPTIONS
from ssd.rpc.server import StartupError
from ssd.runtime.runner import ModelRunner
from ssd.tokenizer import tokenizer_digest
from target_service.main import serve
from target_service.servicer import SERVICE
from tests import toy
from tests.target_service.rig import AR, opening

LIMIT_S = 30.0
Request = target_pb2.TargetServiceServeRequest


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return toy.make_toy(tmp_path_factory.mktemp("models") / "toy-target")


def config_for(model, **changes) -> TargetConfig:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    engine = EngineConfig(dtype="float32", threads=1, kv_tokens=1024, block_size=8)
    return TargetConfig(**({"listen": address, "model": str(model), "engine": engine} | changes))


@contextlib.asynccontextmanager
async def serving(config: TargetConfig) -> AsyncIterator[tuple[asyncio.Task, grpc.aio.Channel]]:
    """The service as a task, and a channel to it once it is SERVING."""
    process = asyncio.create_task(serve(config))
    async with asyncio.timeout(LIMIT_S), grpc.aio.insecure_channel(config.listen, options=CHANNEL_OPTIONS) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service=SERVICE), wait_for_ready=True
        )
        async for status in watch:
            if status.status == health_pb2.HealthCheckResponse.SERVING:
                break
        watch.cancel()
        yield process, channel
        if not process.done():
            process.cancel()
        await asyncio.wait({process})


async def hello(channel: grpc.aio.Channel) -> tuple[grpc.aio.StreamStreamCall, types_pb2.Welcome]:
    call = target_pb2_grpc.TargetServiceStub(channel).Serve()
    await call.write(Request(hello=types_pb2.Hello(epoch=1, caller="test")))
    first = await call.read()
    return call, first.welcome


async def health(channel: grpc.aio.Channel, service: str) -> int:
    answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
    return answer.status


async def blocks_in_use(channel: grpc.aio.Channel) -> int:
    status = await target_pb2_grpc.TargetServiceStub(channel).GetStatus(target_pb2.TargetServiceGetStatusRequest())
    return status.load.kv_blocks_used


async def test_a_stream_from_hello_to_its_end(model):
    config = config_for(model)
    async with serving(config) as (process, channel):
        assert await health(channel, SERVICE) == health_pb2.HealthCheckResponse.SERVING
        assert await health(channel, "") == health_pb2.HealthCheckResponse.SERVING
        call, welcome = await hello(channel)
        assert welcome.epoch != 0
        assert (welcome.model.name, welcome.model.source) == ("toy-target", str(model))
        assert (welcome.model.vocab_size, welcome.model.context_length) == (toy.VOCAB, 1024)
        assert (welcome.model.architecture, welcome.model.dtype) == ("LlamaForCausalLM", "float32")
        assert welcome.model.parameters > 100_000
        assert list(welcome.model.eos_ids) == [toy.EOS, toy.IM_END]
        assert welcome.model.tokenizer_digest == tokenizer_digest(model)
        assert (welcome.max_k, welcome.max_sequences, welcome.max_tokens) == (16, 64, 1024)

        await call.write(Request(opens=[opening(1, [72, 105], mode=AR, max_tokens=9)]))
        ids, closed = [], []
        while not closed:
            response = await call.read()
            ids += [token for outcome in response.outcomes for token in outcome.ids]
            closed += response.closed
        assert (len(ids), closed) == (9, [1])

        await call.write(Request(ping=types_pb2.Ping(nonce=5)))
        pong = (await call.read()).pong
        assert (pong.nonce, pong.load.kv_blocks_used) == (5, 0)

        await call.write(Request(opens=[opening(2, list(range(100)), mode=AR, max_tokens=800)]))
        await call.read()
        assert await blocks_in_use(channel) > 0
        await call.done_writing()
        assert await call.read() is not None  # what was on its way
        while await call.read() is not grpc.aio.EOF:
            continue
        while await blocks_in_use(channel):
            await asyncio.sleep(0)

        signal.raise_signal(signal.SIGTERM)
        assert await process == 0


async def test_a_stopping_process_does_not_wait_for_idle_streams_and_tells_them(model):
    async with serving(config_for(model, drain_s=25.0)) as (process, channel):
        call, _ = await hello(channel)
        signal.raise_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process, 10.0) == 0
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            while await call.read() is not grpc.aio.EOF:
                continue
        assert failure.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_live_sequence_may_end_while_the_process_drains(model):
    async with serving(config_for(model, drain_s=25.0)) as (process, channel):
        call, _ = await hello(channel)
        await call.write(Request(opens=[opening(1, [1, 2, 3], mode=AR, max_tokens=60)]))
        ids = [token for outcome in (await call.read()).outcomes for token in outcome.ids]
        signal.raise_signal(signal.SIGTERM)
        while len(ids) < 60:
            ids += [token for outcome in (await call.read()).outcomes for token in outcome.ids]
        assert await asyncio.wait_for(process, 10.0) == 0


async def test_a_dead_engine_ends_the_process_with_a_failure(model, monkeypatch):
    async with serving(config_for(model)) as (process, channel):
        call, _ = await hello(channel)
        monkeypatch.setattr(ModelRunner, "run", lambda self, rows: 1 / 0)
        await call.write(Request(opens=[opening(1, [1], mode=AR)]))
        assert await asyncio.wait_for(process, 10.0) == 1


async def test_a_stream_must_begin_with_hello(model):
    async with serving(config_for(model)) as (_, channel):
        call = target_pb2_grpc.TargetServiceStub(channel).Serve()
        await call.write(Request(closes=[1]))
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await call.read()
        assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "hello" in failure.value.details()


async def test_a_missing_model_and_a_taken_port_are_startup_errors(model, tmp_path):
    with pytest.raises(StartupError, match="nowhere"):
        await serve(config_for(tmp_path / "nowhere"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(StartupError, match="port is in use"):
            await serve(config_for(model, listen=f"127.0.0.1:{taken.getsockname()[1]}"))
