"""Generations in all modes over a model in one process, or over ranks that are processes with gloo between them.

The processes are forked from a server that has imported everything once, so that a group costs no more than its work.
"""

import multiprocessing
import random
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from draft_service.engine import DraftEngine
from protos.ssd.v1 import types_pb2
from router.plan import Plan as RequestPlan
from router.plan import uniform
from ssd.config import DraftConfig, EngineConfig, TargetConfig
from ssd.layers.shard import Shard
from ssd.parallel.group import join_store, loopback_store
from ssd.parallel.line import Line, receive
from ssd.parallel.place import LOOPBACK, Place
from ssd.parallel.plan import Plan
from ssd.parallel.ranks import join_group
from ssd.parallel.runners import LeadingRunner, follow
from ssd.runtime.assembly import make_runner
from ssd.runtime.step_sizes import Demand
from ssd.tokenizer import load_tokenizer
from target_service.engine import TargetEngine
from tests.world.build import info
from tests.world.cases import AR, SD, SSD
from tests.world.world import World

WITHIN_S = 90.0
ENGINE = EngineConfig(dtype="float32", kv_tokens=4096, block_size=8, collective_timeout_s=60.0)
# Sums in another order differ in the last bits, which turns a draw only where two scores are that close: for these
# seeds none are.
REQUESTS = (
    (types_pb2.SamplingParameters(temperature=0.0, seed=0), -1),
    (types_pb2.SamplingParameters(temperature=0.8, seed=1), -1),
    (types_pb2.SamplingParameters(temperature=0.8, seed=2, top_p=0.9, repetition_penalty=1.2), 3),
    (types_pb2.SamplingParameters(temperature=0.0, seed=3), 2),
)
PROMPT, TOKENS, K = tuple(range(40, 75)), 28, 4


@dataclass(frozen=True)
class Played:
    """For each mode and request: ids, and the logprobs of those that were asked for them."""

    ids: list[list[int]]
    logprobs: list[list[float]]
    hits: int


def play(target_part, draft_part, tokenizer) -> Played:
    """Each mode in turn, all requests at once. A part is (runner, pool, model configuration)."""
    ids, logprobs, hits = [], [], 0
    for mode in (AR, SD, SSD):
        (runner, pool, model), (draft_runner, draft_pool, draft_model) = target_part, draft_part
        target = TargetEngine(runner, pool, model, TargetConfig(engine=ENGINE), info())
        draft = DraftEngine(draft_runner, draft_pool, draft_model, DraftConfig(engine=ENGINE), info())
        world = World(target, pool, draft, draft_pool, tokenizer, random.Random(0))
        for number, (sampling, wanted) in enumerate(REQUESTS):
            limits = types_pb2.TokenLimits(max_tokens=TOKENS, ignore_eos=True)
            world.submit(number, RequestPlan(PROMPT, sampling, limits, wanted, mode, K, uniform(3)))
        results = world.run()
        world.settle()
        for number in range(len(REQUESTS)):
            assert not results[number].failure, results[number].failure
            ids.append(results[number].ids)
            logprobs.append([one.logprob for one in results[number].logprobs])
            hits += results[number].usage.hits
    return Played(ids, logprobs, hits)


@dataclass(frozen=True)
class Models:
    target: Path
    draft: Path


def part_of(directory: Path, place: Place | None = None):
    """(runner, pool, configuration), the group, and bytes of parameters here."""
    if place is None:
        plan = Plan(directory, ENGINE, Demand())
        loaded = plan.load(Shard())
        runner, pool = make_runner(loaded, ENGINE)
        return (runner, pool, loaded.config), None, bytes_of(loaded)
    plan = Plan(directory, replace(ENGINE, tp=place.size), Demand())
    plan.check()
    group = join_group(plan, place, join_store(place))
    loaded = plan.load(group.shard, place.local_rank)
    group.all_loaded()
    runner, pool = make_runner(loaded, plan.engine, plan.demand, prepare=True)
    return (runner, pool, loaded.config), group, bytes_of(loaded)


def play_alone(models: Models) -> tuple[Played, int]:
    """In this process; and the bytes of the target's parameters."""
    part, _, size = part_of(models.target)
    return play(part, part_of(models.draft)[0], load_tokenizer(models.target)), size


def play_over_ranks(models: Models, ranks: int, sharded: str = "target") -> tuple[Played, list[int]]:
    """Over processes that share the target or the draft; and the bytes of its parameters in each of them."""
    store = loopback_store(ranks)
    places = [Place(rank, ranks, rank, LOOPBACK, store.port, 1) for rank in range(ranks)]
    pipes = [server().Pipe(duplex=False) for _ in places]
    processes = [
        server().Process(target=_rank, args=(place, models, sharded, theirs), daemon=True)
        for place, (_, theirs) in zip(places, pipes, strict=True)
    ]
    for process in processes:
        process.start()
    for _, theirs in pipes:
        theirs.close()
    try:
        sizes = [_received(ours) for ours, _ in pipes]
        return _received(pipes[0][0]), sizes
    finally:
        for process in processes:
            process.kill()
            process.join(10)


def _received(pipe):
    assert pipe.poll(WITHIN_S), "a rank says nothing"
    return pipe.recv()


def _rank(place: Place, models: Models, sharded: str, pipe) -> None:
    torch.set_num_threads(1)
    part, group, size = part_of(getattr(models, sharded), place)
    pipe.send(size)
    if place.rank:
        follow(part[0], lambda: receive(group.broadcast, ENGINE.block_size))
    leading = (LeadingRunner(part[0], Line(group.broadcast)), *part[1:])
    if sharded == "target":
        pipe.send(play(leading, part_of(models.draft)[0], load_tokenizer(models.target)))
    else:
        pipe.send(play(part_of(models.target)[0], leading, load_tokenizer(models.target)))


def bytes_of(loaded) -> int:
    return sum(parameter.nbytes for parameter in loaded.model.parameters())


@cache
def server():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context
