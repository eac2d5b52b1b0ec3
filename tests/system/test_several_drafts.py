"""Several drafts that share one sequence's fan-out."""

import signal
from collections.abc import Iterator

import pytest

from protos.ssd.v1 import admin_pb2, inference_pb2, types_pb2
from tests.system import peers
from tests.system.reading import Reading, request
from tests.system.services import System, Toys, running_system
from tests.toy import make_noisy_draft, make_toy

pytestmark = pytest.mark.alone

TOKENS = 200
DRAFTS = 4
# A step long enough for every table to be there in time, so that only what is in the tables counts.
TARGET_S = 0.1
ATTEMPTS = 4


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("several")
    target = make_toy(folder / "toy", "llama")
    toys = Toys(target, make_noisy_draft(target, folder / "toy-draft", 0.05))
    pace = {"target": TARGET_S}
    with running_system(toys, folder, drafts=DRAFTS, pace=pace, k=3, peer_timeout_s=2.0, heartbeat_s=0.2) as running:
        yield running


@pytest.fixture(scope="module")
def plain(system: System) -> Reading:
    """What the target says without any draft; it runs beside the first of the others."""
    return Reading(system, request(types_pb2.MODE_AR, TOKENS))


def asked(drafts: int, name: str = "") -> inference_pb2.GenerateRequest:
    return request(types_pb2.MODE_SSD, TOKENS, name, fan_out=1, drafts=drafts)


@pytest.mark.timeout(400)
def test_hits_rise_with_the_number_of_drafts_of_the_same_budget(system: System, plain: Reading) -> None:
    readings = []
    # A busy machine makes tables late, which only ever lowers a rate: the best of a few runs says what the tables hold.
    best = dict.fromkeys((1, 2, DRAFTS), 0.0)
    for _ in range(ATTEMPTS):
        for drafts in best:
            reading = Reading(system, asked(drafts))
            reading.end()
            readings.append(reading)
            best[drafts] = max(best[drafts], reading.hit_rate)
        if best[1] + 0.03 < best[2] and best[2] + 0.03 < best[DRAFTS]:
            break
    else:
        pytest.fail(f"hit rates by number of drafts: {best}")
    plain.end()
    assert all(reading.ids == plain.ids for reading in readings)


@pytest.mark.timeout(400)
def test_killing_one_of_them_in_mid_stream_changes_nothing_but_speed(system: System, plain: Reading) -> None:
    reading = Reading(system, asked(DRAFTS, "observed"))
    reading.at_least(100)
    system.supervisor["draft2"].process.send_signal(signal.SIGKILL)
    peers.eventually(lambda: lost(system) == 1, "the router reports one draft lost")
    before = peers.inspect(system, "observed")
    assert before.drafting, "the others go on"
    peers.eventually(lambda: peers.inspect(system, "observed").hits > before.hits + 10, "hits go on")
    reading.end()
    plain.end()
    assert reading.ids == plain.ids
    system.restart("draft2")
    peers.eventually(lambda: lost(system) == 0, "all drafts are back")


def lost(system: System) -> int:
    """Drafts that the router is without."""
    return sum(draft.state != admin_pb2.PEER_STATE_READY for draft in peers.server_info(system).drafts)
