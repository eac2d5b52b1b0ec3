"""Real processes that are killed, stopped and held up while they open, send and receive.

Nobody hangs: the other end says within its limit that the plane is broken, lives on, and pairs in the next epoch.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

LIMIT_S = 0.8
# Opening may take three limits; a busy machine is given time to run at all.
BROKEN_WITHIN_S = 3 * LIMIT_S + 4.0
WITHIN_S = 60.0
ROOT = Path(__file__).parents[3]
PEER = "tests.ssd.tensor_plane.peer"
GPUS = torch.cuda.device_count()
KINDS = {
    "gloo": ("PLANE_KIND_GLOO", "cpu", "cpu", ""),
    "cuda_ipc": ("PLANE_KIND_CUDA_IPC", "cuda:0", "cuda:0", "" if GPUS else "cuda_ipc needs a GPU"),
    "nccl": ("PLANE_KIND_NCCL", "cuda:0", "cuda:1", "" if GPUS > 1 else f"nccl needs two GPUs, there are {GPUS}"),
}

PLACES = [("target", "init"), ("draft", "init"), ("draft", "send"), ("target", "receive")]


class Peer:
    """A process around one end."""

    def __init__(self, role: str, device: str) -> None:
        self.role = role
        self._device = device
        self.start()

    def start(self) -> None:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", PEER, self.role, self._device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, args=(self.process, self._lines), daemon=True).start()

    @staticmethod
    def _read(process: subprocess.Popen[str], lines: queue.Queue[dict[str, Any] | None]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                lines.put(json.loads(line))
        lines.put(None)

    def ready(self) -> None:
        self.hear("ready")

    def tell(self, do: str, **fields: Any) -> None:
        assert self.process.stdin is not None
        print(json.dumps({"do": do, **fields}), file=self.process.stdin, flush=True)

    def hear(self, name: str, within_s: float = WITHIN_S) -> dict[str, Any]:
        """The next line that has this field."""
        deadline = time.monotonic() + within_s
        while True:
            line = self._lines.get(timeout=max(0.01, deadline - time.monotonic()))
            assert line is not None, f"the {self.role} has ended"
            if name in line:
                return line

    def state(self, within_s: float = WITHIN_S) -> dict[str, Any]:
        """The next report of a plane."""
        return self.hear("state", within_s)

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def until_dead(self) -> None:
        self.process.wait(WITHIN_S)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        """Gone, however it was."""
        if self.lives:
            self.process.kill()
        self.process.wait(WITHIN_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def restart(self) -> None:
        self.end()
        self.start()
        self.ready()


class Pair:
    """A draft and a target, and the router between them."""

    def __init__(self, kind: str) -> None:
        self.kind, target, draft, _ = KINDS[kind]
        self.target, self.draft = Peer("target", target), Peer("draft", draft)
        self._epochs = itertools.count(1)
        self.plane = 0
        for peer in (self.target, self.draft):
            peer.ready()

    def order(self) -> None:
        """A new epoch."""
        for peer in (self.target, self.draft):
            peer.tell("close", plane=self.plane)
        self.plane = next(self._epochs)
        order = {"plane": self.plane, "kind": self.kind, "name": f"test/{self.plane}", "limit_s": LIMIT_S}
        self.target.tell("order", **order)
        self.draft.tell("order", **order, rendezvous=self.target.state()["rendezvous"])

    def open(self) -> None:
        """A new epoch in which both ends are open."""
        self.order()
        for peer in (self.target, self.draft):
            report = peer.state()
            assert report["state"] == "PLANE_STATE_OPEN" and report["plane"] == self.plane, report
            assert report["latency_us"] > 0 and report["bandwidth"] > 0

    def carries(self) -> None:
        """Laws come through as they are."""
        self.draft.tell("post", laws=50)
        number = self.draft.hear("posted")["posted"]
        assert number
        assert self.law(number) is True

    def law(self, bundle: int, row: int = 7) -> Any:
        """What the target finds, once it has come or cannot come any more."""
        while True:
            self.target.tell("law", plane=self.plane, bundle=bundle, row=row)
            found = self.target.hear("law")["law"]
            if found != "late":
                return found
            self.target.hear("news")

    def end(self) -> None:
        self.target.end()
        self.draft.end()


ON_GPUS = [
    pytest.param("cuda_ipc", marks=pytest.mark.gpu),
    pytest.param("nccl", marks=[pytest.mark.gpu, pytest.mark.multi]),
]


@pytest.fixture(scope="module", params=["gloo", *ON_GPUS])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    if reason := KINDS[request.param][3]:
        pytest.skip(reason)
    pair = Pair(request.param)
    yield pair
    pair.end()


@pytest.fixture(autouse=True)
def whole(pair: Pair) -> Iterator[None]:
    """Whatever a test did, both processes are there for the next one."""
    yield
    for peer in (pair.target, pair.draft):
        if peer.lives:
            peer.signal(signal.SIGCONT)
        else:
            peer.restart()


def ends(pair: Pair, victim: str) -> tuple[Peer, Peer]:
    """The one that something happens to, and the other."""
    return (pair.target, pair.draft) if victim == "target" else (pair.draft, pair.target)


def comes_back(pair: Pair, struck: Peer, what: str) -> None:
    """The next epoch pairs, with the survivor as it is."""
    if what == "kill":
        struck.until_dead()
        struck.restart()
    else:
        struck.signal(signal.SIGCONT)
        assert struck.state()["state"] == "PLANE_STATE_BROKEN", "it finds out too"
    pair.open()
    pair.carries()


def test_laws_go_over_and_one_epoch_follows_another(pair: Pair) -> None:
    for _ in range(3):
        pair.open()
        pair.carries()
        pair.carries()
    assert pair.law(1, row=999) == "gone"


@pytest.mark.parametrize("what", ["kill", "stop"])
@pytest.mark.parametrize(("victim", "where"), PLACES)
def test_the_other_end_of_a_lost_one_says_so_in_time_and_pairs_again(
    pair: Pair, victim: str, where: str, what: str
) -> None:
    struck, other = ends(pair, victim)
    if where != "init":
        pair.open()
    struck.tell("fault", where=where, what=what)
    struck.hear("armed")
    if where == "init":
        pair.order()
    else:
        pair.draft.tell("post", laws=3)
    report = other.state(BROKEN_WITHIN_S)
    assert report["state"] == "PLANE_STATE_BROKEN" and report["reason"], report
    assert other.lives
    comes_back(pair, struck, what)


@pytest.mark.parametrize(("victim", "where"), PLACES)
def test_a_delay_within_the_limit_is_borne(pair: Pair, victim: str, where: str) -> None:
    struck, _ = ends(pair, victim)
    if where != "init":
        pair.open()
    struck.tell("fault", where=where, what=str(LIMIT_S / 3))
    struck.hear("armed")
    if where == "init":
        pair.open()
    pair.carries()


def test_an_end_that_stops_between_bundles_is_noticed(pair: Pair) -> None:
    for struck, other in ((pair.draft, pair.target), (pair.target, pair.draft)):
        pair.open()
        struck.signal(signal.SIGSTOP)
        assert other.state(BROKEN_WITHIN_S)["state"] == "PLANE_STATE_BROKEN"
        comes_back(pair, struck, "stop")


def test_a_draft_that_nobody_tells_of_the_plane_is_not_waited_for(pair: Pair) -> None:
    for peer in (pair.target, pair.draft):
        peer.tell("close", plane=pair.plane)
    pair.plane = 1000
    pair.target.tell("order", plane=pair.plane, kind=pair.kind, name="test/alone", limit_s=LIMIT_S)
    assert pair.target.state()["state"] == "PLANE_STATE_OPENING"
    report = pair.target.state(BROKEN_WITHIN_S)
    assert report["state"] == "PLANE_STATE_BROKEN" and "did not come" in report["reason"]
