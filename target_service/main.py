"""The target process: loads the model, proves that it generates, serves until it is told to stop."""

from __future__ import annotations

import functools
import time

import structlog

from protos.ssd.v1 import target_pb2, target_pb2_grpc, types_pb2
from ssd.config import TargetConfig
from ssd.models.builtin import resolve_model
from ssd.models.loader import LoadedModel
from ssd.parallel.plan import Plan
from ssd.parallel.ranks import ALONE, Team
from ssd.parallel.serving import run_ranked, team_of
from ssd.rpc.engine_process import LoadProgress, run_engine
from ssd.rpc.model_info import model_info
from ssd.rpc.server import Server, StartupError
from ssd.runtime.assembly import make_runner
from ssd.runtime.device import resolve_deterministic, set_threads
from ssd.runtime.step_sizes import Demand
from ssd.telemetry import logging
from ssd.telemetry.trace import NO_TRACER, Tracer, open_tracer
from ssd.tensor_plane.planes import ReceivingPlanes
from target_service.engine import TargetEngine
from target_service.servicer import SERVICE, Request, TargetServicer

WARM_UP_TOKENS = 2
_WARM_UP_STREAM = 0  # the loop numbers its streams from 1

log = structlog.get_logger()


def main(config: TargetConfig) -> int:
    """Run the process; returns its exit status. StartupError says why it cannot start."""
    logging.configure(service="target")
    return run_ranked(config.engine, functools.partial(serve, config))


async def serve(config: TargetConfig) -> int:
    """Bind, load, serve, drain; returns the exit status: 0 after a signal, 1 when the engine died."""
    tracer = open_tracer(config.trace, "target")
    server = Server(config.listen, [SERVICE])
    servicer = TargetServicer()
    target_pb2_grpc.add_TargetServiceServicer_to_server(servicer, server.grpc)
    await server.start()
    log.info("listening", address=server.address, model=config.model)
    with team_of(config.engine, server) as team:
        build = functools.partial(load_engine, config, team=team, tracer=tracer)
        return await run_engine(server, build, servicer.begin, config.drain_s, tracer)


def load_engine(
    config: TargetConfig, progress: LoadProgress, team: Team = ALONE, tracer: Tracer = NO_TRACER
) -> TargetEngine:
    """The engine that `config` describes, warmed up. ModelError or FieldError (both ValueError) for what is wrong."""
    started, engine = time.monotonic(), config.engine
    set_threads(engine.threads, engine.device, engine.tp)
    directory = resolve_model(config.model, progress=progress)
    deterministic = resolve_deterministic(engine.deterministic, engine.dtype, engine.device)
    plan = Plan(directory, engine, demand_of(config), deterministic)
    loaded = plan.load(team.join(plan), progress=progress)
    team.all_loaded()
    info = model_info(loaded, config.model, directory, engine, directory, loaded.config.eos_ids)
    target = make_engine(loaded, config, info, tracer, team)
    warm_up(target)
    seconds = round(time.monotonic() - started, 1)
    log.info("loaded", seconds=seconds, dtype=target.info.dtype, deterministic=target.info.deterministic)
    return target


def demand_of(config: TargetConfig) -> Demand:
    """What this service may ask of a step."""
    return Demand(queries=config.max_k + 1, sequences=config.engine.max_sequences)


def make_engine(
    loaded: LoadedModel,
    config: TargetConfig,
    info: types_pb2.ModelInfo,
    tracer: Tracer = NO_TRACER,
    team: Team = ALONE,
) -> TargetEngine:
    """An engine with a KV cache of its own around a loaded model."""
    runner, pool = make_runner(loaded, config.engine, demand_of(config), prepare=True)
    planes = ReceivingPlanes(loaded.device, config.plane_address)
    return TargetEngine(team.lead(runner), pool, loaded.config, config, info, tracer, planes)


def warm_up(engine: TargetEngine) -> None:
    """Generate a few tokens the way a router would have it; StartupError when nothing comes out."""
    room = min(engine.limits.context, engine.limits.kv_tokens) - 1
    if room < 1:
        raise StartupError("kv_tokens or max_context: no room for a prompt and an output token")
    limits = types_pb2.TokenLimits(max_tokens=min(WARM_UP_TOKENS, room), ignore_eos=True)
    sampling = types_pb2.SamplingParameters(seed=0)
    opened = target_pb2.TargetOpen(
        sequence=1, ids=[0], prompt_len=1, sampling=sampling, limits=limits, logprobs=-1, mode=types_pb2.MODE_AR
    )
    engine.handle(_WARM_UP_STREAM, Request(opens=[opened]))
    while engine.wake_at(now := time.monotonic()) is not None:
        for response in engine.step(now).values():
            if response.refused:
                raise StartupError(f"the model does not generate: {response.refused[0].message}")
    engine.close_stream(_WARM_UP_STREAM)
