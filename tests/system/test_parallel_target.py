"""A target over several ranks: the same ids, and the whole group gone in time when any rank dies or stands still."""

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import ssd.cli.stack as stacks
from protos.ssd.v1 import admin_pb2, types_pb2
from ssd.cli.ports import free_ports
from ssd.cli.supervisor import ServiceSpec
from ssd.parallel.ranks import END_WITHIN_S
from ssd.rpc.options import CHANNEL_OPTIONS
from tests.system import peers
from tests.system.command import Command, all_gone
from tests.system.reading import Reading, request
from tests.system.services import System, Toys, running_system, stack_options

SILENCE_S = 3.0
STATED_S = SILENCE_S + END_WITHIN_S
BUSY_S = 4.0
"""What a machine that is busy with other tests may add."""
TOKENS = 200
HEALTH = stacks.HEALTH_NAMES["target"]


@dataclass(frozen=True)
class Two:
    """A system with a target over ranks, "target", and one in a single process, "target2"."""

    system: System
    plain_ids: list[int]

    def start(self, ranks: int) -> psutil.Process:
        """The target over so many ranks, known to the router; it may run already."""
        child = self.system.supervisor["target"]
        if child.process.poll() is not None or ranks_of(child.process.pid) != ranks:
            if child.process.poll() is None:
                child.process.terminate()
                child.process.wait(20)
            self.system.supervisor.start(over_ranks(self.system.specs["target"], ranks))
            self.system.supervisor.wait_ready(90)
        peers.eventually(lambda: ready_targets(self.system) == 2, "both targets are there")
        return psutil.Process(self.system.supervisor["target"].process.pid)


def ranks_of(pid: int) -> int:
    return 1 + len(psutil.Process(pid).children())


def over_ranks(spec: ServiceSpec, ranks: int) -> ServiceSpec:
    return replace(spec, command=(*spec.command, "--tp", str(ranks)))


def ready_targets(system: System) -> int:
    return sum(one.state == admin_pb2.PEER_STATE_READY for one in peers.server_info(system).targets)


@pytest.fixture(scope="module")
def two(toys: Toys, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    """The draft is over two ranks as well."""
    folder = tmp_path_factory.mktemp("parallel")
    (port,) = free_ports(stacks.HOST, 1)
    second = f"{stacks.HOST}:{port}"
    stack = stacks.build(stack_options(toys))
    target = replace(stack.target, engine=replace(stack.target.engine, tp=2, rank_silence_s=SILENCE_S))
    assert stack.draft is not None
    draft = replace(stack.draft, engine=replace(stack.draft.engine, tp=2, rank_silence_s=10.0))
    router = replace(
        stack.router, targets=(stack.target.listen, second), peer_timeout_s=2.0, heartbeat_s=0.2, target_wait_s=60.0
    )
    with running_system(toys, folder, stack=replace(stack, target=target, draft=draft, router=router)) as system:
        spec = system.specs["target"]
        command = (*spec.command, "--listen", second, "--tp", "1")
        system.supervisor.start(replace(spec, name="target2", command=command, address=second))
        system.supervisor.wait_ready(90)
        peers.eventually(lambda: ready_targets(system) == 2, "both targets are there")
        reference = Reading(system, request(types_pb2.MODE_AR, TOKENS))
        reference.end()
        yield Two(system, reference.ids)


class Health:
    """What a service's health says, as it changes."""

    def __init__(self, address: str) -> None:
        self.said: list[int] = []
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        asked = health_pb2.HealthCheckRequest(service=HEALTH)
        self._watch = health_pb2_grpc.HealthStub(self._channel).Watch(asked, timeout=120)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for message in self._watch:
                self.said.append(message.status)
        except grpc.RpcError:
            return

    def close(self) -> None:
        self._watch.cancel()
        self._thread.join(10)
        self._channel.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("ranks", "number", "rank"),
    [
        (2, signal.SIGKILL, 1),
        (2, signal.SIGSTOP, 1),
        (2, signal.SIGKILL, 0),
        (2, signal.SIGSTOP, 0),
        pytest.param(4, signal.SIGKILL, 3, marks=pytest.mark.slow),
    ],
)
def test_a_lost_rank_ends_the_group_and_no_stream(two: Two, ranks: int, number: signal.Signals, rank: int) -> None:
    target = two.start(ranks)
    others = target.children()
    assert len(others) == ranks - 1
    victim = target if rank == 0 else others[rank - 1]
    health = Health(two.system.specs["target"].address)
    # One on each target: a new sequence goes where there are fewer.
    readings = [Reading(two.system, request(types_pb2.MODE_SSD, TOKENS)) for _ in range(2)]
    try:
        for reading in readings:
            reading.at_least(20)
        peers.eventually(lambda: peers.SERVING in health.said, "the health is known")
        victim.send_signal(number)
        status = two.system.supervisor["target"].process.wait(STATED_S + BUSY_S)
        assert status != 0
        assert all_gone(others, END_WITHIN_S + BUSY_S)
    finally:
        for process in (target, *others):
            if process.is_running():
                process.kill()
        for reading in readings:
            reading.end()
        health.close()
    if rank > 0:
        assert status == 1
        assert health.said[-1] == health_pb2.HealthCheckResponse.NOT_SERVING
    assert [reading.ids for reading in readings] == [two.plain_ids] * 2


@pytest.mark.timeout(120)
def test_a_target_that_is_asked_to_end_takes_its_ranks_with_it(two: Two) -> None:
    target = two.start(2)
    others = target.children()
    # A process manager may ask all of them.
    for one in (*others, target):
        one.terminate()
    assert two.system.supervisor["target"].process.wait(20) == 0
    assert all_gone(others, BUSY_S)


@pytest.mark.timeout(120)
def test_ranks_that_others_start_meet_by_the_environment(toys: Toys) -> None:
    meeting, listen = free_ports(stacks.HOST, 2)
    arguments = ("target", "--model", str(toys.target), "--dtype", "float32", "--threads", "1", "--tp", "2")
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": stacks.HOST, "MASTER_PORT": str(meeting)}

    def rank(number: int) -> Command:
        place = {"RANK": str(number), "LOCAL_RANK": str(number)}
        return Command(*arguments, "--listen", f"{stacks.HOST}:{listen}", environment=os.environ | common | place)

    with rank(1) as follower, rank(0) as leader:
        peers.eventually(lambda: any('"serving"' in line for line in leader.err), "rank 0 serves", 60.0)
        assert not leader.children(), "these ranks are not its children"
        leader.process.kill()
        assert follower.wait_end(STATED_S + BUSY_S) == 1
