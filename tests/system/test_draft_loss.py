"""A draft that dies or hangs costs speed and nothing else."""

import signal
import threading
from collections.abc import Iterator

import grpc
import pytest

from protos.ssd.v1 import admin_pb2, inference_pb2, inference_pb2_grpc, types_pb2
from router.health import DRAFT, INFERENCE
from ssd.rpc.options import CHANNEL_OPTIONS
from tests.system import peers
from tests.system.services import System, Toys, running_system
from tests.toy import make_noisy_draft, make_toy

TOKENS = 4000


@pytest.fixture(scope="module")
def long_toys(tmp_path_factory: pytest.TempPathFactory) -> Toys:
    """A target deep and patient enough that a draft can die and come back within one answer."""
    folder = tmp_path_factory.mktemp("long-toys")
    target = make_toy(folder / "toy", "llama", layers=6, max_position=8192)
    return Toys(target, make_noisy_draft(target, folder / "toy-draft", 0.02))


@pytest.fixture
def system(long_toys: Toys, tmp_path: object) -> Iterator[System]:
    with running_system(long_toys, tmp_path, peer_timeout_s=1.5, heartbeat_s=0.2) as running:  # type: ignore[arg-type]
        yield running


def request(mode: types_pb2.Mode, tokens: int, request_id: str = "") -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        request_id=request_id,
        text="once upon a time",
        sampling=types_pb2.SamplingParameters(temperature=0.8, seed=7),
        stop=inference_pb2.StopParameters(max_tokens=tokens, ignore_eos=True),
        speculation=inference_pb2.SpeculationParameters(mode=mode),
    )


class Reading:
    """A stream that is read on a thread, so that things can happen meanwhile."""

    def __init__(self, system: System, asked: inference_pb2.GenerateRequest) -> None:
        self.ids: list[int] = []
        self.usage = inference_pb2.Usage()
        self.error: grpc.RpcError | None = None
        self._channel = grpc.insecure_channel(system.address, options=CHANNEL_OPTIONS)
        self._call = inference_pb2_grpc.InferenceServiceStub(self._channel).GenerateStream(asked, timeout=120)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for message in self._call:
                self.ids.extend(message.token_ids)
                self.usage.MergeFrom(message.usage)
        except grpc.RpcError as error:
            self.error = error

    def at_least(self, count: int) -> None:
        peers.eventually(lambda: len(self.ids) >= count or not self._thread.is_alive(), f"{count} tokens")

    def end(self) -> None:
        self._thread.join(120)
        assert not self._thread.is_alive()
        assert self.error is None
        self._channel.close()


def draft_is_lost(system: System) -> bool:
    info = peers.server_info(system)
    return not peers.is_serving(system, DRAFT) and info.drafts[0].state != admin_pb2.PEER_STATE_READY


@pytest.mark.timeout(240)
def test_a_killed_draft_changes_nothing_is_reported_and_brings_hits_back(system: System) -> None:
    reference = Reading(system, request(types_pb2.MODE_AR, TOKENS))
    reference.end()
    assert len(reference.ids) == TOKENS

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
    reading.end()
    assert reading.ids == reference.ids
    assert reading.usage.hits > at_loss.hits
    peers.eventually(lambda: peers.held(system) == 0, "all KV blocks are back")


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
