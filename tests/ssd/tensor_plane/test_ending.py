"""The end of a process that has planes, or had them a moment ago, is an end in order."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from protos.ssd.v1 import types_pb2
from ssd.tensor_plane import planes as planes_module
from ssd.tensor_plane.end import BROKEN
from ssd.tensor_plane.planes import ReceivingPlanes, SendingPlanes

WITHIN_S = 60.0
ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
import threading
from protos.ssd.v1 import types_pb2
from ssd.tensor_plane.planes import ReceivingPlanes, SendingPlanes

draft, target, news = SendingPlanes("cpu"), ReceivingPlanes("cpu", "127.0.0.1:0"), threading.Event()
draft.wake = target.wake = lambda stream: news.set()
order = types_pb2.PlaneOrder(plane=1, kind=types_pb2.PLANE_KIND_GLOO, name="test", limit_s=2.0)
target.order(1, order)
order.rendezvous = target.reports()[0][1].rendezvous
draft.order(1, order)
opened = 0
while opened < 2:
    assert news.wait(30)
    news.clear()
    opened += len(draft.reports()) + len(target.reports())
for name in sys.argv[1:]:
    globals()[name].close_stream(1)
"""


@pytest.mark.parametrize("closed", [(), ("target",), ("draft",), ("target", "draft")])
def test_a_process_ends_in_order_whichever_ends_were_closed(closed: tuple[str, ...]) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *closed], env=environment, capture_output=True, text=True, timeout=WITHIN_S
    )
    assert done.returncode == 0, done.stderr
    assert "terminate" not in done.stderr


def test_ends_that_do_not_come_back_count_as_planes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planes_module, "MOST_PLANES", 1)
    target = ReceivingPlanes("cpu", "127.0.0.1:0")
    order = types_pb2.PlaneOrder(plane=1, kind=types_pb2.PLANE_KIND_GLOO, name="test", limit_s=0.5)
    target.order(1, order)
    target.close(1, 1)  # its thread waits for a draft
    target.reports()
    order.plane = 2
    target.order(1, order)
    assert [report.reason for _, report in target.reports()] == ["this process has 1 planes already"]
    assert all(end.join(WITHIN_S) for end in target._closing)
    target.order(1, order)
    assert target.reports()[0][1].state != BROKEN
    target.close(1, 2)
    assert all(end.join(WITHIN_S) for end in target._closing)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("listen", ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"])
def test_planes_open_wherever_a_target_listens(listen: str) -> None:
    draft, target = SendingPlanes("cpu"), ReceivingPlanes("cpu", listen)
    order = types_pb2.PlaneOrder(plane=1, kind=types_pb2.PLANE_KIND_GLOO, name="test", limit_s=5.0)
    target.order(1, order)
    opening = target.reports()[0][1]
    assert opening.state != BROKEN, opening.reason
    host, _, port = opening.rendezvous.rpartition(":")
    order.rendezvous = f"{host or '127.0.0.1'}:{port}"
    draft.order(1, order)
    found = [planes._reports.get(timeout=WITHIN_S)[1] for planes in (draft, target)]
    assert [report.reason for report in found] == ["", ""]
    for planes in (draft, target):
        planes._end()
