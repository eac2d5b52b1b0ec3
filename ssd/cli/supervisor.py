"""Child processes that belong together: start them, see them ready, notice a death, end them all in bounded time."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ssd.cli.logtail import LogTail
from ssd.rpc.options import CHANNEL_OPTIONS

POLL_S = 0.1
HEALTH_EVERY_S = 0.3
STOP_WITHIN_S = 4.5


@dataclass(frozen=True)
class ServiceSpec:
    """How to start one service and how to see that it works."""

    name: str
    command: tuple[str, ...]
    address: str  # host:port of its gRPC server
    health: str  # the grpc.health.v1 name that turns SERVING


class ServiceDied(Exception):
    """A child ended although nobody asked it to."""

    def __init__(self, name: str, returncode: int, last_lines: Sequence[str], starting: bool) -> None:
        self.name = name
        self.returncode = returncode
        self.last_lines = tuple(last_lines)
        self.starting = starting
        super().__init__(f"the {name} ended with {describe_exit(returncode)}{' while starting' if starting else ''}")


class StartTimeout(Exception):
    """A child is alive but did not become ready in time."""


@dataclass
class Child:
    """One running process. `ready` stays true once its health was SERVING."""

    spec: ServiceSpec
    process: subprocess.Popen[bytes]
    tail: LogTail
    channel: grpc.Channel
    ready: bool = False
    _checked_at: float = field(default=0.0, repr=False)

    def is_serving(self, timeout_s: float = 2.0) -> bool:
        """Whether the service says SERVING now."""
        request = health_pb2.HealthCheckRequest(service=self.spec.health)
        try:
            answer = health_pb2_grpc.HealthStub(self.channel).Check(request, timeout=timeout_s)
        except grpc.RpcError:
            return False
        return answer.status == health_pb2.HealthCheckResponse.SERVING

    def look(self, now: float) -> None:
        """Update `ready`, at most every HEALTH_EVERY_S seconds."""
        if not self.ready and now - self._checked_at >= HEALTH_EVERY_S:
            self.ready = self.is_serving()
            self._checked_at = time.monotonic()


class Supervisor:
    """Owns children from start to end; as a context manager it leaves none behind."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        """Logs go to `folder`/NAME.log. `environment` replaces this process's own for the children."""
        self.folder = folder
        self.children: dict[str, Child] = {}
        self._environment = dict(os.environ if environment is None else environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __getitem__(self, name: str) -> Child:
        return self.children[name]

    def start(self, spec: ServiceSpec) -> Child:
        """Start a child, or start it again after its end.

        Its standard input is a pipe that closes with this process (see lifeline). It has its own session: Ctrl-C in
        a terminal reaches only this process, which then ends the children in order.
        """
        if (old := self.children.get(spec.name)) is not None:
            self._reap(old)
        path = self.folder / f"{spec.name}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                spec.command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        channel = grpc.insecure_channel(spec.address, options=CHANNEL_OPTIONS)
        child = self.children[spec.name] = Child(spec, process, LogTail(path), channel)
        return child

    def wait_ready(self, timeout_s: float, on_tick: Callable[[], None] = lambda: None) -> None:
        """Return when every child serves. Raises ServiceDied or StartTimeout; `on_tick` runs at every look."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.check_alive()
            now = time.monotonic()
            for child in self.children.values():
                child.look(now)
            on_tick()
            waiting = [name for name, child in self.children.items() if not child.ready]
            if not waiting:
                return
            if now > deadline:
                raise StartTimeout(
                    f"not ready after {timeout_s:.0f} s: {', '.join(waiting)}; logs are in {self.folder}"
                )
            time.sleep(POLL_S)

    def check_alive(self) -> None:
        """Raise ServiceDied for the first child that has ended."""
        for name, child in self.children.items():
            if (returncode := child.process.poll()) is not None:
                raise ServiceDied(name, returncode, child.tail.last(), starting=not child.ready)

    def stop(self, within_s: float = STOP_WITHIN_S) -> list[str]:
        """End all children; the names of those that had to be killed.

        The last started is asked first and has half of the time, because it streams to clients; then the others.
        """
        deadline = time.monotonic() + within_s
        everyone = list(self.children.values())
        front, behind = everyone[-1:], everyone[:-1]
        _ask(front)
        _wait(front, deadline - within_s / 2)
        _ask(behind)
        _wait(everyone, deadline)
        killed = [c.spec.name for c in self.children.values() if c.process.poll() is None]
        for child in self.children.values():
            self._reap(child)
        self.children.clear()
        return killed

    def _reap(self, child: Child) -> None:
        if child.process.poll() is None:
            child.process.kill()
        child.process.wait()
        if child.process.stdin is not None:
            child.process.stdin.close()
        child.channel.close()


def describe_exit(returncode: int) -> str:
    """`exit status 3`, or `signal 9 (SIGKILL)`."""
    if returncode >= 0:
        return f"exit status {returncode}"
    try:
        return f"signal {-returncode} ({signal.Signals(-returncode).name})"
    except ValueError:
        return f"signal {-returncode}"


def _ask(children: Sequence[Child]) -> None:
    for child in children:
        if child.process.poll() is None:
            child.process.terminate()


def _wait(children: Sequence[Child], deadline: float) -> None:
    for child in children:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return
