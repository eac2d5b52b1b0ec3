"""Rejection over a tensor plane: the same ids as inline, and the same law whatever the plane does."""

import random
from dataclasses import dataclass

import pytest

from protos.ssd.v1 import target_pb2, types_pb2
from router.plan import Plan, uniform
from ssd.config import DraftConfig, EngineConfig, TargetConfig
from ssd.tensor_plane.choice import Kind
from ssd.tokenizer import load_tokenizer
from tests.world import build
from tests.world.network import CALM, Chaos
from tests.world.planes import Wire
from tests.world.world import Result, World

SEQUENCES = 4
ENGINE = EngineConfig(block_size=8, kv_tokens=4096, max_sequences=16)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return build.Models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def tokenizer(models):
    models.target("llama")
    return load_tokenizer(models.folder / "llama-0.0")


@dataclass
class Setup:
    models: build.Models
    tokenizer: object

    def world(self, wire: Wire | None, chaos: Chaos = CALM) -> World:
        """Timing, seeds and models are the same with and without a plane."""
        sides = (None, None) if wire is None else (wire.receiving, wire.sending)
        target, target_pool = build.target_engine(self.models.target("llama"), TargetConfig(engine=ENGINE), sides[0])
        noisy = self.models.draft("llama", 0.02)
        draft, draft_pool = build.draft_engine(noisy, DraftConfig(engine=ENGINE), sides[1])
        if wire is not None:
            wire.receiving.wake = lambda stream: target.handle(stream, target_pb2.TargetServiceServeRequest())
        return World(
            target, target_pool, draft, draft_pool, self.tokenizer, random.Random(3), chaos, tensor_plane="gloo"
        )

    def run(self, wire: Wire | None, *, verification=types_pb2.VERIFICATION_REJECTION, **options) -> dict[int, Result]:
        world = self.world(wire, **options)
        submit(world, verification)
        results = world.run()
        world.settle()
        return results


@pytest.fixture
def setup(models, tokenizer):
    return Setup(models, tokenizer)


def submit(world: World, verification: int, tokens: int = 32) -> None:
    for number in range(SEQUENCES):
        sampling = types_pb2.SamplingParameters(temperature=0.7, top_k=3, seed=number)
        limits = types_pb2.TokenLimits(max_tokens=tokens, ignore_eos=True)
        mode = types_pb2.MODE_SSD if number % 3 else types_pb2.MODE_SD
        plan = Plan((5, 9, number), sampling, limits, -1, mode, 4, uniform(3), verification=verification)
        world.submit(number, plan)


def ids(results: dict[int, Result]) -> list[list[int]]:
    assert not any(result.failure for result in results.values())
    return [results[number].ids for number in range(SEQUENCES)]


def hits(results: dict[int, Result]) -> int:
    return sum(result.usage.hits for result in results.values())


def test_ids_and_hits_are_those_of_inline_laws(setup):
    wire = Wire()
    inline, over_plane = setup.run(None), setup.run(wire)
    assert ids(over_plane) == ids(inline)
    assert hits(over_plane) == hits(inline) > 10
    assert wire.posted > 30


def test_bundles_that_come_after_their_messages_are_waited_for_and_used(setup):
    wire = Wire(random.Random(1), keep=0.5)
    results = setup.run(wire)
    assert all(len(one) == 32 for one in ids(results))
    assert hits(results) > 10


@pytest.mark.parametrize(
    ("wire", "chaos"),
    [({"lose": 1.0}, CALM), ({"lose": 0.2, "keep": 0.5}, Chaos(lose=0.2, double=0.3, delay=0.05))],
)
def test_a_plane_that_loses_bundles_ends_no_stream_and_nothing_is_held(setup, wire, chaos):
    wire = Wire(random.Random(2), **wire)
    world = setup.world(wire, chaos)
    submit(world, types_pb2.VERIFICATION_REJECTION)
    results = world.run()
    world.settle()
    assert all(len(one) == 32 for one in ids(results))
    if wire.lose == 1.0:
        over_plane = sum(world.target.load().law_drops.values())
        assert over_plane > 5 and world.target.load().stale_drops >= over_plane


def test_coupled_ids_do_not_know_of_planes(setup):
    coupled = types_pb2.VERIFICATION_COUPLED
    wire = Wire(lose=1.0)
    assert ids(setup.run(wire, verification=coupled)) == ids(setup.run(None, verification=coupled))
    assert wire.posted == 0


def test_a_plane_that_is_cut_is_followed_by_inline_and_by_another_one_after_a_pause(setup):
    wire = Wire()
    world = setup.world(wire)
    submit(world, types_pb2.VERIFICATION_REJECTION, tokens=200)
    (pair,) = world.coordinator.planes.pairs
    world.advance(60)
    first = pair.epoch
    assert pair.kind is Kind.GLOO and wire.posted
    wire.cut()
    world.advance(20)
    assert pair.epoch == first + 1 and pair.kind is Kind.INLINE and pair.reason == "gloo: cut"
    posted, emitted = wire.posted, [len(result.ids) for result in world.results.values()]
    world.advance(40)
    assert wire.posted == posted
    assert all(len(result.ids) > count for result, count in zip(world.results.values(), emitted, strict=True))
    world.run()
    assert pair.epoch == first + 2 and pair.kind is Kind.GLOO and wire.posted > posted
    world.settle()


def test_a_lost_draft_takes_its_plane_with_it_and_brings_a_new_one(setup):
    wire = Wire()
    world = setup.world(wire)
    submit(world, types_pb2.VERIFICATION_REJECTION, tokens=80)
    world.advance(60)
    world.lose_draft()
    assert not list(world.coordinator.planes.pairs)
    world.advance(20)
    assert not wire.receiving.stores
    world.regain_draft()
    posted = wire.posted
    assert all(len(one) == 80 for one in ids(world.run()))
    assert wire.posted > posted and len({order.plane for order in wire.receiving.orders}) == 2
