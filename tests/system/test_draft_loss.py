"""A draft that dies or hangs costs speed and nothing else."""

import signal
from collections.abc import Iterator

import pytest

from protos.ssd.v1 import admin_pb2, types_pb2
from router.health import DRAFT, INFERENCE
from tests.system import peers
from tests.system.reading import Reading, request
from tests.system.services import System, Toys, running_system
from tests.toy import make_noisy_draft, make_toy

# A pass takes at least this, and so many tokens are more than a quick machine makes while a draft dies and comes back.
PASS_S = 0.003
TOKENS = 8000


@pytest.fixture(scope="module")
def long_toys(tmp_path_factory: pytest.TempPathFactory) -> Toys:
    """A target deep and patient enough that a draft can die and come back within one answer."""
    folder = tmp_path_factory.mktemp("long-toys")
    target = make_toy(folder / "toy", "llama", layers=6, max_position=8192)
    return Toys(target, make_noisy_draft(target, folder / "toy-draft", 0.02))


@pytest.fixture
def system(long_toys: Toys, tmp_path: object) -> Iterator[System]:
    pace = {"target": PASS_S}
    with running_system(long_toys, tmp_path, pace=pace, peer_timeout_s=1.5, heartbeat_s=0.2) as running:  # type: ignore[arg-type]
        yield running


def draft_is_lost(system: System) -> bool:
    info = peers.server_info(system)
    return not peers.is_serving(system, DRAFT) and info.drafts[0].state != admin_pb2.PEER_STATE_READY


@pytest.mark.timeout(240)
def test_a_killed_draft_changes_nothing_is_reported_and_brings_hits_back(system: System) -> None:
    reading = Reading(system, request(types_pb2.MODE_SSD, TOKENS, "observed"))
    reading.at_least(60)
    assert peers.is_serving(system, DRAFT)
    peers.eventually(lambda: peers.inspect(system, "observed").hits > 0, "the draft is quick enough for a hit")
    system.supervisor["draft"].process.send_signal(signal.SIGKILL)
    peers.eventually(lambda: draft_is_lost(system), "the router reports the draft lost")
    assert peers.is_serving(system, INFERENCE), "without a draft the router still serves"
    assert peers.router_load(system).degraded
    at_loss = peers.inspect(system, "observed")
    assert not at_loss.drafting and at_loss.hits > 0

    system.restart("draft")
    peers.eventually(lambda: peers.is_serving(system, DRAFT), "the draft is back")
    peers.eventually(lambda: peers.inspect(system, "observed").hits > at_loss.hits + 5, "hits come back in mid-stream")
    reading.cancel()
    peers.eventually(lambda: peers.held(system) == 0, "all KV blocks are back")

    reference = Reading(system, request(types_pb2.MODE_AR, len(reading.ids)))
    reference.end()
    assert reading.ids == reference.ids


@pytest.mark.timeout(240)
def test_a_stopped_draft_is_given_up_and_the_stream_goes_on(system: System) -> None:
    tokens = 1500
    reference = Reading(system, request(types_pb2.MODE_AR, tokens))
    reference.end()
    reading = Reading(system, request(types_pb2.MODE_SSD, tokens))
    reading.at_least(40)
    draft = system.supervisor["draft"].process
    draft.send_signal(signal.SIGSTOP)
    try:
        reading.end()
        assert reading.ids == reference.ids
        peers.eventually(lambda: draft_is_lost(system), "the silent draft is taken for lost")
    finally:
        draft.send_signal(signal.SIGCONT)
    peers.eventually(lambda: peers.is_serving(system, DRAFT), "the draft is taken back when it answers again")
    peers.eventually(lambda: peers.held(system) == 0, "all KV blocks are back")
