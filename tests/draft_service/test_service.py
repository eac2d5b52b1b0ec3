"""The real process around the engine, over gRPC on a free local port."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draft_service.main import Sources, load_engine, serve
from draft_service.servicer import SERVICE, DraftServicer, Request
from protos.ssd.v1 import draft_pb2, draft_pb2_grpc, types_pb2
from ssd.config import DraftConfig, EngineConfig
from ssd.models.checkpoint import RECIPE, Checkpoint
from ssd.models.loader import EMBEDDING, HEAD
from ssd.rpc.engine_process import LoadProgress, run_engine
from ssd.rpc.server import Server, StartupError
from ssd.tokenizer import tokenizer_digest
from tests.draft_service.harness import Reference
from tests.draft_service.harness import Request as Sequence
from tests.toy import EOS, IM_END, make_toy

LIMIT_S = 20.0
ENGINE = EngineConfig(dtype="float64", kv_tokens=1024, block_size=4, threads=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_toy(tmp_path_factory.mktemp("served") / "model")


@pytest.fixture(scope="module")
def bare(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as a draft is shipped: without embedding, head, tokenizer and generation settings."""
    from safetensors.torch import load_file, save_file

    path = tmp_path_factory.mktemp("bare") / "draft"
    path.mkdir()
    shutil.copy(model / "config.json", path)
    weights = load_file(model / "model.safetensors")
    save_file({name: w for name, w in weights.items() if name not in (EMBEDDING, HEAD)}, path / "model.safetensors")
    return path


def config_of(directory: Path, **changes: object) -> DraftConfig:
    values = {"listen": "127.0.0.1:0", "model": str(directory), "target_model": str(directory), "drain_s": 0.5}
    return DraftConfig(**(values | changes), engine=ENGINE)


@contextlib.asynccontextmanager
async def running(config: DraftConfig) -> AsyncIterator[tuple[grpc.aio.Channel, asyncio.Task[int], Server]]:
    """The process as main.py runs it, but with its server at hand."""
    server = Server(config.listen, [SERVICE])
    servicer = DraftServicer()
    draft_pb2_grpc.add_DraftServiceServicer_to_server(servicer, server.grpc)
    await server.start()
    process = asyncio.create_task(
        run_engine(server, lambda progress: load_engine(config, progress), servicer.begin, config.drain_s)
    )
    async with grpc.aio.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        async for answer in health.Watch(health_pb2.HealthCheckRequest(service=SERVICE)):
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                break
        try:
            yield channel, process, server
        finally:
            server.end(0)
            await process


def test_a_stream_drafts_answers_pings_and_leaves_nothing_behind(model: Path, reference: Reference) -> None:
    request = Sequence((1, 2, 3, 4, 5), {"temperature": 1.0}, k=4, fan_out=1)

    async def scenario() -> None:
        async with running(config_of(model)) as (channel, _, _server):
            stub = draft_pb2_grpc.DraftServiceStub(channel)
            call = stub.Serve()
            await call.write(Request(hello=types_pb2.Hello(epoch=1, caller="test")))
            welcome = (await call.read()).welcome
            assert welcome.epoch > 0 and welcome.max_k == 16 and welcome.max_tokens == 1024
            assert welcome.model.tokenizer_digest == tokenizer_digest(model)
            await call.write(Request(opens=[request.message(1, need=True)]))
            proposal, tables = None, []
            while not tables or len(tables[-1].branches[0].ids) < 4:
                message = await call.read()
                proposal = message.proposals[0] if message.proposals else proposal
                tables.extend(message.tables)
            assert proposal is not None
            assert tuple(proposal.ids) == reference.continuation(request, request.prompt, 4)
            outcome = next(branch for branch in tables[-1].branches if branch.accepted == 4)
            await call.write(Request(ping=types_pb2.Ping(nonce=17)))
            pong = (await call.read()).pong
            assert pong.nonce == 17 and pong.load.running == 1
            advance = draft_pb2.Advance(sequence=1, base_len=5, ids=[*proposal.ids, outcome.id], next_depth=4)
            await call.write(Request(advances=[advance]))
            table = (await call.read()).tables[0]
            assert (table.base_len, tuple(table.proposal)) == (10, tuple(outcome.ids))
            await call.done_writing()
            while (message := await call.read()) is not grpc.aio.EOF:
                assert message.tables, "nothing but a deeper table may still be on its way"
            status = await stub.GetStatus(draft_pb2.DraftServiceGetStatusRequest())
            while status.load.kv_blocks_used:
                status = await stub.GetStatus(draft_pb2.DraftServiceGetStatusRequest())
            assert status.epoch == welcome.epoch and status.load.running == 0

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))


def test_the_process_ends_with_status_0_when_told_to_and_refuses_a_taken_port(model: Path) -> None:
    async def scenario() -> int:
        async with running(config_of(model)) as (_, process, server):
            with pytest.raises(StartupError, match="listen"):
                await serve(config_of(model, listen=server.address))
            server.end(0)
            return await process

    assert asyncio.run(asyncio.wait_for(scenario(), LIMIT_S)) == 0


def test_a_draft_without_embedding_and_tokenizer_takes_its_targets(model: Path, bare: Path) -> None:
    config = config_of(bare, target_model=str(model))
    assert EMBEDDING not in Checkpoint(bare).names
    engine = load_engine(config, LoadProgress())
    assert engine.info.tokenizer_digest == tokenizer_digest(model)
    assert list(engine.info.eos_ids) == [EOS, IM_END], "the target's, which the bare draft does not know"
    assert engine.load().kv_blocks_used == 0


def test_a_complete_draft_needs_no_target(model: Path) -> None:
    sources = Sources.find(config_of(model, target_model="/nowhere"), LoadProgress())
    assert sources == Sources(model, None, model)


def test_a_draft_that_is_made_from_a_recipe_needs_no_target_either(model: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe"
    shutil.copytree(model, recipe, ignore=shutil.ignore_patterns("*.safetensors"))
    (recipe / RECIPE).write_text("{}")
    sources = Sources.find(config_of(recipe, target_model="/nowhere"), LoadProgress())
    assert sources == Sources(recipe, None, recipe)


@pytest.mark.parametrize("missing", ["model", "target_model"])
def test_a_missing_model_is_a_startup_error_that_names_it(bare: Path, missing: str) -> None:
    config = config_of(bare, **{missing: "/nowhere/at/all"})

    async def scenario() -> None:
        with pytest.raises(StartupError, match="/nowhere/at/all"):
            await serve(config)

    asyncio.run(asyncio.wait_for(scenario(), LIMIT_S))
