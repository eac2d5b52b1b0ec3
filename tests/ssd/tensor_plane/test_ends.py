"""Ends over channels that misbehave: nobody waits for them, and they say what is wrong."""

import math
import queue
import threading

import pytest

from protos.ssd.v1 import types_pb2
from ssd.speculation.law import LawRef, SparseLaw
from ssd.tensor_plane import sending
from ssd.tensor_plane.channel import Broken, Bundle, Measured
from ssd.tensor_plane.end import BROKEN, OPEN
from ssd.tensor_plane.packing import pack
from ssd.tensor_plane.planes import ReceivingPlanes, SendingPlanes
from ssd.tensor_plane.receiving import ReceivingEnd
from ssd.tensor_plane.sending import SendingEnd
from ssd.tensor_plane.store import Absent

LIMIT_S = 0.2
WITHIN_S = 20.0
LAW = SparseLaw((1, 4), (0.5, 0.25))


class FakeChannel:
    """Does what it is told: `stuck` names the calls that never return before `release`."""

    def __init__(self, *stuck: str) -> None:
        self.stuck = set(stuck)
        self.sent: queue.Queue = queue.Queue()
        self.coming: queue.Queue = queue.Queue()
        self.aborted = threading.Event()
        self.aborted_by = ""
        self.release = threading.Event()

    def _do(self, what: str) -> None:
        if what in self.stuck:
            self.release.wait(WITHIN_S)

    def begin_sending(self) -> Measured:
        self._do("begin")
        return Measured(1e-4, 1e9)

    begin_receiving = begin_sending

    def send(self, number, tensors) -> None:
        self._do("send")
        self.sent.put((number, tensors))

    def beat(self) -> None:
        self._do("beat")
        self.sent.put("beat")

    def receive(self) -> Bundle | None:
        self._do("receive")
        item = self.coming.get(timeout=WITHIN_S)
        if isinstance(item, Exception):
            raise item
        return item

    def abort(self) -> None:
        self.aborted_by = threading.current_thread().name
        self.aborted.set()
        self.coming.put(Broken("aborted"))


@pytest.fixture
def reports():
    return queue.Queue()


@pytest.fixture
def begin(reports):
    """Start an end over a channel; all of them are ended afterwards."""
    started = []

    def start(kind, channel, *more, limit_s=WITHIN_S):
        end = kind(3, limit_s, lambda: channel, reports.put, *more)
        started.append((end, channel))
        end.start()
        return end

    yield start
    for end, channel in started:
        end.close()
        channel.release.set()
        assert end.join(WITHIN_S)


def states(reports, count: int) -> list[types_pb2.PlaneReport]:
    return [reports.get(timeout=WITHIN_S) for _ in range(count)]


def test_an_open_end_says_what_was_measured_and_sends(begin, reports):
    channel = FakeChannel()
    end = begin(SendingEnd, channel)
    (opened,) = states(reports, 1)
    assert (opened.plane, opened.state, opened.latency_us, opened.bandwidth) == (3, OPEN, pytest.approx(100.0), 1e9)
    bundle = end.bundle()
    assert bundle.refer((LAW, LAW)) == (LawRef(3, 1, 0), LawRef(3, 1, 1))
    assert bundle.refer((LAW,)) == (LawRef(3, 1, 2),)
    assert bundle.refer(()) == ()
    bundle.post()
    while (sent := channel.sent.get(timeout=WITHIN_S)) == "beat":
        pass
    assert sent[0] == 1 and [part.tolist() for part in sent[1]] == [part.tolist() for part in pack([LAW] * 3)]


def test_an_idle_end_gives_signs_of_life(begin, reports):
    channel = FakeChannel()
    begin(SendingEnd, channel, limit_s=1.0)
    assert [channel.sent.get(timeout=WITHIN_S) for _ in range(2)] == ["beat", "beat"]


def test_laws_that_do_not_fit_stay_where_they_are(begin, reports, monkeypatch):
    monkeypatch.setattr(sending, "MOST_BYTES", 200)
    end = begin(SendingEnd, FakeChannel())
    states(reports, 1)
    bundle = end.bundle()
    assert bundle.refer((LAW, LAW)) == (LawRef(3, 1, 0), LawRef(3, 1, 1))
    assert bundle.refer((LAW,) * 10) == (LAW,) * 10
    assert bundle.refer((LAW, LawRef(1, 1, 1))) == (LAW, LawRef(1, 1, 1)), "another plane's are passed on"


def test_before_it_is_open_nothing_goes_over_an_end(begin):
    channel = FakeChannel("begin")
    assert begin(SendingEnd, channel).bundle() is None


@pytest.mark.parametrize("stuck", ["begin", "beat", "send"])
def test_a_sender_whose_library_never_returns_is_broken_within_its_limit(begin, reports, stuck):
    channel = FakeChannel(stuck)
    end = begin(SendingEnd, channel, limit_s=LIMIT_S)
    if stuck != "begin":
        assert states(reports, 1)[0].state == OPEN
        bundle = end.bundle()
        bundle.refer((LAW,))
        bundle.post()
    (broken,) = states(reports, 1)
    assert broken.state == BROKEN and "too long" in broken.reason
    assert end.bundle() is None
    assert channel.aborted.wait(WITHIN_S) and "guard" in channel.aborted_by, "aborted by another thread"


def test_a_receiver_whose_library_never_returns_is_broken_within_its_limit(begin, reports):
    channel = FakeChannel("receive")
    end = begin(ReceivingEnd, channel, lambda: None, limit_s=LIMIT_S)
    assert [one.state for one in states(reports, 2)] == [OPEN, BROKEN]
    assert channel.aborted.wait(WITHIN_S)
    assert end.laws.law(1, 0) is Absent.CLOSED


def test_a_target_that_does_not_keep_up_gets_laws_inline(begin, reports):
    channel = FakeChannel("send", "beat")
    end = begin(SendingEnd, channel)
    states(reports, 1)
    posted = 0
    while (bundle := end.bundle()) is not None:
        bundle.refer((LAW,))
        bundle.post()
        posted += 1
    assert sending.QUEUED <= posted <= sending.QUEUED + 1
    assert end.state == OPEN


def test_a_receiver_keeps_laws_counts_damage_and_tells_who_waits(begin, reports):
    channel, awaited = FakeChannel(), queue.Queue()
    end = begin(ReceivingEnd, channel, lambda: awaited.put("come"))
    assert states(reports, 1)[0].state == OPEN
    assert end.laws.law(2, 0) is Absent.LATE
    channel.coming.put(None)
    channel.coming.put(Bundle(1, ()))
    channel.coming.put(Bundle(2, pack([LAW])))
    assert awaited.get(timeout=WITHIN_S) == "come"
    assert end.laws.law(2, 0) == LAW and end.laws.law(1, 0) is Absent.GONE
    assert end.damaged == 1


def test_a_draft_that_lives_but_does_not_send_what_it_told_of_is_given_up(begin, reports):
    channel = FakeChannel()
    end = begin(ReceivingEnd, channel, lambda: None, limit_s=1.0)
    states(reports, 1)
    assert end.laws.law(7, 0) is Absent.LATE

    beats = threading.Event()

    def beat() -> None:
        while not beats.wait(LIMIT_S / 4):
            channel.coming.put(None)

    thread = threading.Thread(target=beat)
    thread.start()
    (broken,) = states(reports, 1)
    beats.set()
    thread.join(WITHIN_S)
    assert broken.state == BROKEN and "told of did not come" in broken.reason


@pytest.mark.parametrize("error", [Broken("the other end is gone"), RuntimeError("a library's own")])
def test_whatever_goes_wrong_breaks_the_plane_and_nothing_else(begin, reports, error):
    channel = FakeChannel()
    begin(ReceivingEnd, channel, lambda: None)
    states(reports, 1)
    channel.coming.put(error)
    (broken,) = states(reports, 1)
    assert broken.state == BROKEN and str(error) in broken.reason


def test_a_closed_end_says_nothing(begin, reports):
    end = begin(SendingEnd, FakeChannel())
    states(reports, 1)
    end.close()
    end.close()
    assert end.join(WITHIN_S)
    assert reports.empty()


def test_a_draft_that_nobody_answers_says_so():
    planes = SendingPlanes("cpu")
    woken: queue.Queue = queue.Queue()
    planes.wake = woken.put
    order = types_pb2.PlaneOrder(
        plane=2, kind=types_pb2.PLANE_KIND_GLOO, name="x", limit_s=LIMIT_S, rendezvous="127.0.0.1:1", target=4
    )
    planes.order(9, order)
    planes.order(9, order)
    assert woken.get(timeout=WITHIN_S) == 9
    ((stream, report),) = planes.reports()
    assert stream == 9 and report.state == BROKEN and "127.0.0.1:1" in report.reason
    assert planes.bundle(9, 4) is None
    planes.close_stream(9)


@pytest.mark.parametrize("limit_s", [0.0, -1.0, math.nan, math.inf, 1e9])
@pytest.mark.parametrize("planes", [SendingPlanes("cpu"), ReceivingPlanes("cpu", "127.0.0.1:0")])
def test_an_order_that_nobody_can_follow_is_refused(planes, limit_s):
    planes.order(1, types_pb2.PlaneOrder(plane=2, limit_s=limit_s))
    ((_, report),) = planes.reports()
    assert report.state == BROKEN and report.reason.startswith("limit_s is")


def test_a_process_has_so_many_planes_and_no_more(monkeypatch):
    monkeypatch.setattr("ssd.tensor_plane.planes.MOST_PLANES", 1)
    planes = SendingPlanes("cpu")
    for plane in (1, 2):
        planes.order(1, types_pb2.PlaneOrder(plane=plane, limit_s=LIMIT_S, rendezvous="127.0.0.1:1"))
    reasons = {report.plane: report.reason for _, report in planes.reports()}
    assert "1 planes already" in reasons[2]
    planes.close_stream(1)


def test_a_target_that_cannot_listen_says_so():
    planes = ReceivingPlanes("cpu", "203.0.113.7:1")
    planes.order(1, types_pb2.PlaneOrder(plane=2, kind=types_pb2.PLANE_KIND_GLOO, name="x", limit_s=LIMIT_S))
    ((_, report),) = planes.reports()
    assert report.state == BROKEN and report.reason.startswith("plane_listen: cannot listen on 203.0.113.7:1")
    assert planes.law(1, LawRef(2, 1, 0)) is Absent.CLOSED
