"""Both services on one GPU: laws go through device memory that both have mapped."""

import signal

import pytest
import torch

from protos.ssd.v1 import admin_pb2, types_pb2
from tests.system import peers
from tests.system.reading import Reading, request
from tests.system.services import System, Toys, running_system

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device on this machine"),
    pytest.mark.timeout(300),
]
SSD = types_pb2.MODE_SSD
REJECTION = types_pb2.VERIFICATION_REJECTION


def plane(system: System) -> admin_pb2.Plane:
    return next(iter(peers.server_info(system).planes), admin_pb2.Plane())


def is_open(system: System) -> bool:
    found = plane(system)
    return (found.kind, found.state) == (types_pb2.PLANE_KIND_CUDA_IPC, types_pb2.PLANE_STATE_OPEN)


def test_one_gpu_takes_cuda_ipc_by_itself_carries_rejection_and_survives_a_killed_draft(toys: Toys, tmp_path) -> None:
    with running_system(toys, tmp_path, device="cuda", heartbeat_s=0.2) as system:
        peers.eventually(lambda: is_open(system), "the plane is open")
        found = plane(system)
        print(f"cuda_ipc: {found.latency_us:.0f} us one way, {found.bandwidth / 1e9:.2f} GB/s")
        assert found.latency_us > 0 and found.bandwidth > 0
        reading = Reading(system, request(SSD, 300, verification=REJECTION))
        reading.end()
        drops = dict(peers.load_of(system, "target").law_drops)
        print(f"accepted {reading.usage.accepted}, hits {reading.usage.hits}, laws not there when wanted {drops}")
        assert len(reading.ids) == 300 and reading.usage.accepted > 30
        assert plane(system).epoch == found.epoch and is_open(system)
        readings = [Reading(system, request(mode, 200)) for mode in (types_pb2.MODE_AR, SSD)]
        for reading in readings:
            reading.end()
        assert readings[0].ids == readings[1].ids

        reading = Reading(system, request(SSD, 900, verification=REJECTION))
        reading.at_least(40)
        system.supervisor["draft"].process.send_signal(signal.SIGKILL)
        reading.end()
        assert len(reading.ids) == 900
        system.restart("draft")
        peers.eventually(lambda: is_open(system) and plane(system).epoch > found.epoch, "the next epoch is open")


def test_nccl_on_one_gpu_is_inline_by_itself_and_said_once(toys: Toys, tmp_path) -> None:
    with running_system(toys, tmp_path, device="cuda", heartbeat_s=0.2, tensor_plane="nccl") as system:
        peers.eventually(lambda: bool(plane(system).target), "the pair is there")
        found = plane(system)
        assert found.kind == types_pb2.PLANE_KIND_INLINE and "nccl needs a GPU for each end" in found.reason
        reading = Reading(system, request(SSD, 200, verification=REJECTION))
        reading.end()
        assert len(reading.ids) == 200
        logs = "".join(file.read_text() for file in tmp_path.rglob("*router*.log"))
        assert logs.count("tensor plane fell back to inline") == 1
