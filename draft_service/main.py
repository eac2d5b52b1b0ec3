"""The draft process: loads the model, proves that it drafts, serves until it is told to stop."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from pathlib import Path

import structlog

from draft_service.engine import DraftEngine
from draft_service.servicer import SERVICE, DraftServicer, Request
from protos.ssd.v1 import draft_pb2, draft_pb2_grpc, types_pb2
from ssd.config import DraftConfig
from ssd.models.builtin import resolve_model
from ssd.models.checkpoint import Checkpoint, has_recipe
from ssd.models.config import ModelConfig
from ssd.models.loader import EMBEDDING, LoadedModel
from ssd.parallel.plan import Plan
from ssd.parallel.ranks import ALONE, Team
from ssd.parallel.serving import run_ranked, team_of
from ssd.rpc.engine_process import LoadProgress, run_engine
from ssd.rpc.model_info import model_info
from ssd.rpc.server import Server, StartupError
from ssd.runtime.assembly import make_runner
from ssd.runtime.device import set_threads
from ssd.runtime.draws import MOST_RANKED
from ssd.runtime.step_sizes import Demand
from ssd.telemetry import logging
from ssd.telemetry.trace import NO_TRACER, Tracer, open_tracer
from ssd.tensor_plane.planes import SendingPlanes
from ssd.tokenizer import TOKENIZER_FILE

WARM_UP_K = 2
_WARM_UP_STREAM = 0  # the loop numbers its streams from 1

log = structlog.get_logger()


@dataclass(frozen=True)
class Sources:
    """Directories a draft is put together from. A draft may be stored without embedding, head and tokenizer: its
    target lends them, and then its end-of-sequence ids are the target's too."""

    model: Path
    embedding: Path | None
    tokenizer: Path

    @classmethod
    def find(cls, config: DraftConfig, progress: LoadProgress) -> Sources:
        """Resolves the models; the target's only where something of it is needed. ModelError says what is missing."""
        model = resolve_model(config.model, progress=progress)
        target = functools.cache(lambda: resolve_model(config.target_model, progress=progress))
        # A recipe makes every tensor, though no file holds it.
        whole = has_recipe(model) or EMBEDDING in Checkpoint(model).names
        embedding = None if whole else target()
        tokenizer = model if (model / TOKENIZER_FILE).is_file() else target()
        return cls(model, embedding, tokenizer)


def main(config: DraftConfig) -> int:
    """Run the process; returns its exit status. StartupError says why it cannot start."""
    logging.configure(service="draft")
    return run_ranked(config.engine, functools.partial(serve, config))


async def serve(config: DraftConfig) -> int:
    """Bind, load, serve, drain; returns the exit status: 0 after a signal, 1 when the engine died."""
    tracer = open_tracer(config.trace, "draft")
    server = Server(config.listen, [SERVICE])
    servicer = DraftServicer()
    draft_pb2_grpc.add_DraftServiceServicer_to_server(servicer, server.grpc)
    await server.start()
    log.info("listening", address=server.address, model=config.model)
    with team_of(config.engine, server) as team:
        build = functools.partial(load_engine, config, team=team, tracer=tracer)
        return await run_engine(server, build, servicer.begin, config.drain_s, tracer)


def load_engine(
    config: DraftConfig, progress: LoadProgress, team: Team = ALONE, tracer: Tracer = NO_TRACER
) -> DraftEngine:
    """The engine that `config` describes, warmed up. ModelError or FieldError (both ValueError) for what is wrong."""
    started = time.monotonic()
    set_threads(config.engine.threads, config.engine.device, config.engine.tp)
    sources = Sources.find(config, progress)
    demand = demand_of(config, ModelConfig.from_directory(sources.model).vocab_size)
    # No rounding of the draft can reach the output, so here it has to be asked for.
    deterministic = config.engine.deterministic == "on"
    plan = Plan(sources.model, config.engine, demand, deterministic, sources.embedding)
    loaded = plan.load(team.join(plan), progress=progress)
    team.all_loaded()
    own = sources.tokenizer == sources.model
    eos_ids = loaded.config.eos_ids if own else ModelConfig.from_directory(sources.tokenizer).eos_ids
    info = model_info(loaded, config.model, sources.model, config.engine, sources.tokenizer, eos_ids)
    engine = make_engine(loaded, config, info, tracer, team)
    warm_up(engine)
    log.info("loaded", seconds=round(time.monotonic() - started, 1), dtype=engine.info.dtype)
    return engine


def demand_of(config: DraftConfig, vocab_size: int) -> Demand:
    """What this service may ask of a step."""
    return Demand(
        # After full acceptance: the last committed token, the proposal in flight, and what is known to follow it.
        queries=2 * config.max_k + 2,
        sequences=config.engine.max_sequences,
        branches=config.max_branches,
        depth=config.max_k,
        # The most that are ranked on the device, whatever a table asks for: a step for another number would be prepared
        # while sequences wait for it.
        candidates=min(MOST_RANKED, vocab_size),
        chain=config.max_k,
        vocab=vocab_size,
    )


def make_engine(
    loaded: LoadedModel,
    config: DraftConfig,
    info: types_pb2.ModelInfo,
    tracer: Tracer = NO_TRACER,
    team: Team = ALONE,
) -> DraftEngine:
    """An engine with a KV cache of its own around a loaded model."""
    runner, pool = make_runner(loaded, config.engine, demand_of(config, info.vocab_size), prepare=True)
    planes = SendingPlanes(loaded.device)
    return DraftEngine(team.lead(runner), pool, loaded.config, config, info, tracer, planes)


def warm_up(engine: DraftEngine) -> None:
    """A proposal and a table, the way a router would have them; StartupError when nothing comes out."""
    opened = draft_pb2.DraftOpen(
        sequence=1,
        ids=[0],
        prompt_len=1,
        sampling=types_pb2.SamplingParameters(seed=0),
        limits=types_pb2.TokenLimits(max_tokens=4 * WARM_UP_K, ignore_eos=True),
        mode=types_pb2.MODE_SSD,
        k=WARM_UP_K,
        fan_out=types_pb2.FanOut(rule=types_pb2.FAN_OUT_RULE_UNIFORM, fan_out=1),
        need_proposal=True,
    )
    engine.handle(_WARM_UP_STREAM, Request(opens=[opened]))
    while engine.wake_at(now := time.monotonic()) is not None:
        for response in engine.step(now).values():
            if response.refused:
                raise StartupError(f"the model does not draft: {response.refused[0].message}")
    engine.close_stream(_WARM_UP_STREAM)
