"""A draft whose device draws by itself, several tokens at a time, says what the draft that asks the host says."""

import pytest

from draft_service.engine import DraftEngine
from draft_service.main import demand_of
from protos.ssd.v1 import draft_pb2, types_pb2
from ssd.config import DraftConfig, EngineConfig
from ssd.models.loader import LoadedModel
from ssd.runtime.draws import MOST_RANKED
from tests.draft_service.harness import BLOCK, Reference, Request, Wire, make_engine, serve_truth
from tests.ssd.runtime.standin import fast_engine
from tests.toy import EOS

PROMPT = (11, 12, 13, 12, 11, 200, 31)
SAMPLINGS = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 0.8, "seed": 1 << 63},
    "filters": {"temperature": 0.8, "top_k": 12, "min_p": 0.02},
    "penalties": {"temperature": 1.0, "repetition_penalty": 1.5},
}


class DeviceWire(Wire):
    """A pass may be several forward passes behind one another, so that they are not counted."""

    passes = 0

    def step(self) -> bool:
        if self.engine.wake_at(0.0) is None:
            return False
        self.passes += 1
        responses = self.engine.step(0.0)
        self.engine.check()
        if (response := responses.get(self.stream)) is not None:
            self.take(response)
        return True


def device_wire(loaded: LoadedModel, *, blocks: int = 256, **engine: int) -> DeviceWire:
    config = DraftConfig(engine=EngineConfig(block_size=BLOCK, kv_tokens=blocks * BLOCK, **engine))
    made = fast_engine(loaded, blocks=blocks, block_size=BLOCK, queries=24, candidates=17, chain=config.max_k)
    return DeviceWire(DraftEngine(made.runner, made.pool, loaded.config, config, types_pb2.ModelInfo()))


def compared(loaded: LoadedModel, play) -> tuple[Wire, DeviceWire]:
    """Both kinds of draft after the same messages; their answers are the same."""
    host, device = Wire(make_engine(loaded)), device_wire(loaded)
    for wire in (host, device):
        play(wire)
        wire.run()
    assert device.table_messages == host.table_messages
    assert device.proposals == host.proposals
    assert device.refused == host.refused
    return host, device


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("k", [1, 2, 6])
def test_proposals_and_tables_are_the_same(loaded: LoadedModel, sampling: str, k: int) -> None:
    request = Request(PROMPT, SAMPLINGS[sampling], k=k, fan_out=2)
    host, device = compared(loaded, lambda wire: wire.open(request, output=(5, 5, 90), need=True))
    assert host.proposals and host.tables
    if sampling in ("greedy", "plain") and k > 2:
        assert device.passes < host.engine.load().steps
    assert device.engine.load().steps == host.engine.load().steps


def test_tables_are_sent_at_the_same_depths(loaded: LoadedModel) -> None:
    request = Request(PROMPT, {"temperature": 0.8}, k=8, fan_out=1)
    host, _ = compared(loaded, lambda wire: wire.open(request))
    assert [table.depth for table in host.tables] == [2, 4, 8]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_ends_of_texts_end_branches_and_proposals(loaded: LoadedModel, temperature: float) -> None:
    sampling = {"temperature": temperature, "logit_bias": {}}
    for seed in range(6):
        request = Request(
            (*PROMPT, seed),
            {**sampling, "seed": seed},
            {"ignore_eos": False, "stop_ids": range(120)},
            k=5,
            fan_out=2,
        )
        compared(loaded, lambda wire, request=request: wire.open(request, need=True))


def test_the_limit_of_a_request_ends_them_too(loaded: LoadedModel) -> None:
    for room in (1, 2, 3, 5):
        request = Request(PROMPT, {"temperature": 0.8}, {"max_tokens": room}, k=4, fan_out=2)
        compared(loaded, lambda wire, request=request: wire.open(request, need=True))


def test_several_sequences_of_all_kinds(loaded: LoadedModel) -> None:
    def play(wire: Wire) -> None:
        for number, sampling in enumerate(SAMPLINGS.values()):
            wire.open(Request((number, *PROMPT), sampling, k=3 + number, fan_out=2), number, need=number != 1)

    host, device = Wire(make_engine(loaded)), device_wire(loaded)
    for wire in (host, device):
        play(wire)
        wire.run()
    for number in range(len(SAMPLINGS)):
        for of_one in ("table_messages", "proposals"):
            both = [[one for one in getattr(wire, of_one) if one.sequence == number] for wire in (host, device)]
            assert both[0][-1:] == both[1][-1:]


@pytest.mark.parametrize("sampling", ["greedy", "plain"])
def test_rounds_after_rounds_stay_right(loaded: LoadedModel, reference: Reference, sampling: str) -> None:
    request = Request(PROMPT, SAMPLINGS[sampling], k=4, fan_out=1)
    truth = reference.continuation(request, PROMPT, 30)
    tallies = [serve_truth(wire, request, truth) for wire in (Wire(make_engine(loaded)), device_wire(loaded))]
    assert tallies[0] == tallies[1]
    assert tallies[1].accepted == tallies[1].proposed and tallies[1].hits == tallies[1].rounds


def test_little_kv_room_costs_chains_and_nothing_else(loaded: LoadedModel, reference: Reference) -> None:
    request = Request(PROMPT, {"temperature": 0.8}, k=6, fan_out=2)
    wire = device_wire(loaded, blocks=4)
    wire.open(request, need=True)
    wire.run()
    assert tuple(wire.proposals[0].ids) == reference.continuation(request, PROMPT, 6)


def test_an_advance_after_a_chain_finds_its_kv(loaded: LoadedModel, reference: Reference) -> None:
    request = Request(PROMPT, {"temperature": 0.8}, k=4, fan_out=1)
    wire = device_wire(loaded)
    wire.open(request, need=True)
    while not wire.proposals:
        wire.step()
    sequence = wire.engine.live.get(wire.stream, 1)
    assert len(sequence.trunk.ids) == len(PROMPT) + 3
    ids = list(wire.proposals[0].ids)
    wire.advance(len(PROMPT), [*ids[:2], EOS - 7], need=True)
    wire.run()
    text = (*PROMPT, *ids[:2], EOS - 7)
    assert tuple(wire.proposals[-1].ids) == reference.continuation(request, text, 4)


def test_timing_is_that_of_one_forward_pass(loaded: LoadedModel) -> None:
    wire = device_wire(loaded)
    wire.open(Request(PROMPT, {"temperature": 0.8}, k=4, fan_out=1), need=True)
    wire.engine.begin(10.0)
    (response,) = wire.engine.finish(10.4).values()
    assert isinstance(response, draft_pb2.DraftServiceServeResponse)
    assert response.timing.step_ms == pytest.approx(100.0)


def test_one_prepared_step_ranks_whatever_a_table_asks_for():
    assert demand_of(DraftConfig(), 49152).candidates == MOST_RANKED
    assert demand_of(DraftConfig(), 20).candidates == 20
