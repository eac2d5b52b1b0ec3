"""Rejection over a gloo plane between real services: measured, reported, and lost without a stream's noticing."""

import signal
from collections.abc import Iterator

import pytest

from protos.ssd.v1 import admin_pb2, types_pb2
from tests.system import peers
from tests.system.reading import Reading, request
from tests.system.services import System, Toys, running_system
from tests.toy import make_noisy_draft, make_toy

LIMIT_S = 2.0
TOKENS = 700
SSD = types_pb2.MODE_SSD
REJECTION = types_pb2.VERIFICATION_REJECTION


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("plane-toys")
    target = make_toy(folder / "toy", "llama", layers=4, max_position=8192)
    toys = Toys(target, make_noisy_draft(target, folder / "toy-draft", 0.02))
    settings = {"tensor_plane": "gloo", "plane_limit_s": LIMIT_S, "heartbeat_s": 0.2, "peer_timeout_s": 20.0}
    with running_system(toys, tmp_path_factory.mktemp("plane"), **settings) as running:
        yield running


def plane(system: System) -> admin_pb2.Plane:
    """The one pair's, or nothing while an end is away."""
    return next(iter(peers.server_info(system).planes), admin_pb2.Plane())


def is_open(system: System) -> bool:
    found = plane(system)
    return (found.kind, found.state) == (types_pb2.PLANE_KIND_GLOO, types_pb2.PLANE_STATE_OPEN)


@pytest.fixture(autouse=True)
def opened(system: System) -> None:
    peers.eventually(lambda: is_open(system), "the plane is open")


def test_the_plane_is_measured_and_carries_rejection(system: System) -> None:
    found = plane(system)
    assert found.target == system.specs["target"].address and found.draft == system.specs["draft"].address
    assert 0 < found.latency_us < 1e6 and found.bandwidth > 1e6 and not found.reason
    reading = Reading(system, request(SSD, 200, verification=REJECTION))
    reading.end()
    assert len(reading.ids) == 200 and reading.usage.accepted > 30
    assert is_open(system) and plane(system).epoch == found.epoch


def test_coupled_ids_are_those_without_a_draft(system: System) -> None:
    readings = [Reading(system, request(mode, 200)) for mode in (types_pb2.MODE_AR, SSD)]
    for reading in readings:
        reading.end()
    assert readings[0].ids == readings[1].ids


def test_a_draft_killed_in_mid_stream_costs_its_plane_and_brings_a_new_one(system: System) -> None:
    before = plane(system)
    reading = Reading(system, request(SSD, TOKENS, verification=REJECTION))
    reading.at_least(40)
    system.supervisor["draft"].process.send_signal(signal.SIGKILL)
    reading.at_least(len(reading.ids) + 100)
    system.restart("draft")
    peers.eventually(lambda: is_open(system) and plane(system).epoch > before.epoch, "the next epoch is open")
    reading.end()
    assert len(reading.ids) == TOKENS
    peers.eventually(lambda: peers.held(system) == 0, "all KV blocks are back")


def test_a_target_that_stands_still_costs_the_plane_and_not_the_stream(system: System) -> None:
    before = plane(system)
    reading = Reading(system, request(SSD, TOKENS, verification=REJECTION))
    reading.at_least(40)
    target = system.supervisor["target"].process
    target.send_signal(signal.SIGSTOP)
    try:
        peers.eventually(lambda: plane(system).fallbacks > before.fallbacks, "the draft finds the plane stalled")
        found = plane(system)
        assert found.kind == types_pb2.PLANE_KIND_INLINE and found.epoch > before.epoch
        assert found.reason.startswith("gloo: ")
    finally:
        target.send_signal(signal.SIGCONT)
    reading.end()
    assert len(reading.ids) == TOKENS
    peers.eventually(lambda: is_open(system), "after a pause the pair has a plane again")
    assert peers.server_info(system).targets[0].state == admin_pb2.PEER_STATE_READY


def test_services_with_an_open_plane_end_orderly(system: System) -> None:
    for name in ("draft", "target"):
        process = system.supervisor[name].process
        process.send_signal(signal.SIGTERM)
        assert process.wait(peers.WITHIN_S) == 0
