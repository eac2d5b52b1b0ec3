import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ssd.cli.ports import free_ports
from ssd.cli.supervisor import ServiceDied, ServiceSpec, StartTimeout, Supervisor, describe_exit

FAKE = str(Path(__file__).with_name("fake_service.py"))


def fake(name: str, *flags: str) -> ServiceSpec:
    port = free_ports("127.0.0.1", 1)[0]
    return ServiceSpec(
        name, (sys.executable, FAKE, str(port), "fake.Service", *flags), f"127.0.0.1:{port}", "fake.Service"
    )


def script(name: str, code: str) -> ServiceSpec:
    return ServiceSpec(name, (sys.executable, "-c", code), "127.0.0.1:1", "fake.Service")


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    with Supervisor(tmp_path) as one:
        yield one


def test_children_become_ready_and_end_in_order(supervisor: Supervisor) -> None:
    processes = [supervisor.start(fake(name)).process for name in ("target", "draft", "router")]
    supervisor.wait_ready(30)
    assert all(child.ready and child.is_serving() for child in supervisor.children.values())
    assert supervisor.stop() == []
    assert [p.returncode for p in processes] == [0, 0, 0]


def test_a_killed_child_is_named_with_its_signal_and_its_last_words(supervisor: Supervisor) -> None:
    supervisor.start(fake("target"))
    supervisor.start(fake("draft"))
    supervisor.wait_ready(30)
    supervisor["draft"].process.kill()
    supervisor["draft"].process.wait()
    with pytest.raises(ServiceDied, match=r"the draft ended with signal 9 \(SIGKILL\)$") as death:
        supervisor.check_alive()
    assert death.value.last_lines == ("listening",)
    assert not death.value.starting


def test_a_child_that_dies_while_starting_ends_the_wait(supervisor: Supervisor) -> None:
    supervisor.start(fake("target"))
    supervisor.start(script("draft", "import sys; print('error: no such model', file=sys.stderr); sys.exit(2)"))
    with pytest.raises(ServiceDied, match="the draft ended with exit status 2 while starting") as death:
        supervisor.wait_ready(30)
    assert death.value.last_lines == ("error: no such model",)


def test_a_child_that_never_serves_is_reported_by_name(supervisor: Supervisor) -> None:
    supervisor.start(script("router", "import sys; sys.stdin.read()"))
    with pytest.raises(StartTimeout, match="router"):
        supervisor.wait_ready(0.0)


def test_a_child_that_does_not_stop_is_killed_within_the_limit(supervisor: Supervisor) -> None:
    process = supervisor.start(fake("target", "ignore-sigterm")).process
    supervisor.start(fake("router"))
    supervisor.wait_ready(30)
    begun = time.monotonic()
    # The other child, which obeys, has the time for it that a busy machine needs.
    assert supervisor.stop(within_s=4.0) == ["target"]
    assert time.monotonic() - begun < 8.0
    assert process.returncode == -signal.SIGKILL


def test_a_dead_child_can_be_started_again(supervisor: Supervisor) -> None:
    spec = fake("draft")
    first = supervisor.start(spec).process
    supervisor.wait_ready(30)
    first.kill()
    first.wait()
    second = supervisor.start(spec).process
    supervisor.wait_ready(30)
    assert second.pid != first.pid
    supervisor.check_alive()


def test_children_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    spec = fake("target")
    code = f"""
from pathlib import Path
from ssd.cli.supervisor import ServiceSpec, Supervisor
s = Supervisor(Path({str(tmp_path)!r}))
child = s.start(ServiceSpec({spec.name!r}, {spec.command!r}, {spec.address!r}, {spec.health!r}))
s.wait_ready(30)
print(child.process.pid, flush=True)
s["target"].process.wait()
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    child.wait(timeout=10)


def test_exit_statuses_are_described() -> None:
    assert describe_exit(3) == "exit status 3"
    assert describe_exit(-11) == "signal 11 (SIGSEGV)"
    assert describe_exit(-200) == "signal 200"
