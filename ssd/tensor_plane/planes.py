"""All planes of one process, by the router's stream that ordered them.

The engine's thread orders, closes, posts and looks up; it never waits. What the planes' own threads have to say lies in
`reports` until the engine's next step, for which they wake it.
"""

from __future__ import annotations

import atexit
import queue
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import structlog
import torch

from protos.ssd.v1 import types_pb2
from ssd.speculation.law import LawRef, SparseLaw
from ssd.tensor_plane.ability import ability, indexed
from ssd.tensor_plane.channel import Broken
from ssd.tensor_plane.choice import ability_message
from ssd.tensor_plane.end import BROKEN, OPEN, OPENING, End
from ssd.tensor_plane.opening import open_draft_end, open_target_end
from ssd.tensor_plane.receiving import ReceivingEnd
from ssd.tensor_plane.rendezvous import Rendezvous
from ssd.tensor_plane.sending import Outgoing, SendingEnd
from ssd.tensor_plane.store import Absent

MOST_PLANES = 64
"""Of one process: as many drafts times routers as anybody has."""
LONGEST_LIMIT_S = 600.0
_END_WITHIN_S = 5.0

AnyEnd = TypeVar("AnyEnd", bound=End)
Report = tuple[int, types_pb2.PlaneReport]

log = structlog.get_logger()


class PlaneSide(Protocol):
    """What the engines of both services see of their planes. All calls come from the engine's thread.

    wake   called, from any thread, when a stream has something to hear or a law has come that was missed
    """

    wake: Callable[[int], None]

    @property
    def ability(self) -> types_pb2.PlaneAbility:
        """For the welcome."""

    def order(self, stream: int, order: types_pb2.PlaneOrder) -> None:
        """Begin to open one end."""

    def close(self, stream: int, plane: int) -> None:
        """Give one up; unknown ones are ignored."""

    def close_stream(self, stream: int) -> None:
        """The router is gone, and its planes with it."""

    def reports(self) -> list[Report]:
        """What happened since the last call, with the streams that are to hear of it."""


class LawSender(PlaneSide, Protocol):
    """The draft's."""

    def bundle(self, stream: int, target: int) -> Outgoing | None:
        """Where laws for a target go, by the router's number; None = into the message."""


class LawReceiver(PlaneSide, Protocol):
    """The target's."""

    def law(self, stream: int, ref: LawRef) -> SparseLaw | Absent:
        """A law that a message of this stream refers to."""


class _Planes(Generic[AnyEnd]):
    """What both sides do alike."""

    def __init__(self, device: torch.device | str) -> None:
        self.wake: Callable[[int], None] = lambda stream: None
        self._device = indexed(device)
        self._ability = ability_message(ability(self._device))
        self._ends: dict[tuple[int, int], AnyEnd] = {}
        self._closing: list[AnyEnd] = []  # given up, and perhaps still in a library's hands
        atexit.register(self._end)
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()

    @property
    def ability(self) -> types_pb2.PlaneAbility:
        """See PlaneSide."""
        return self._ability

    def close(self, stream: int, plane: int) -> None:
        """See PlaneSide."""
        end = self._ends.pop((stream, plane), None)
        if end is not None:
            self._forget(stream, end)
            end.close()
            self._closing.append(end)

    def close_stream(self, stream: int) -> None:
        """See PlaneSide."""
        for known, plane in list(self._ends):
            if known == stream:
                self.close(stream, plane)

    def reports(self) -> list[Report]:
        """See PlaneSide."""
        return [self._reports.get_nowait() for _ in range(self._reports.qsize())]

    def _takes(self, stream: int, order: types_pb2.PlaneOrder) -> bool:
        """Whether an order is a new one that can be followed. What is wrong with one is reported."""
        if (stream, order.plane) in self._ends:
            return False
        reason = ""
        self._closing = [end for end in self._closing if not end.join(0.0)]
        if len(self._ends) + len(self._closing) >= MOST_PLANES:
            reason = f"this process has {MOST_PLANES} planes already"
        elif not 0.0 < order.limit_s <= LONGEST_LIMIT_S:
            reason = f"limit_s is {order.limit_s:g}, must be above 0 and at most {LONGEST_LIMIT_S:g}"
        if reason:
            self._tell(stream, types_pb2.PlaneReport(plane=order.plane, state=BROKEN, reason=reason))
        return not reason

    def _forget(self, stream: int, end: AnyEnd) -> None:
        """An end is no longer there."""

    def _end(self) -> None:
        """When the process ends: a thread that comes back from a library when the interpreter is gone aborts it."""
        for stream, plane in list(self._ends):
            self.close(stream, plane)
        deadline = time.monotonic() + _END_WITHIN_S
        for end in self._closing:
            end.join(max(0.0, deadline - time.monotonic()))

    def _begin(self, stream: int, end: AnyEnd) -> None:
        self._ends[stream, end.number] = end
        end.start()

    def _tell(self, stream: int, report: types_pb2.PlaneReport) -> None:
        """From any thread."""
        if report.state == OPEN:
            megabytes = round(report.bandwidth / 1e6)
            log.info("plane open", plane=report.plane, latency_us=round(report.latency_us), mb_per_s=megabytes)
        self._reports.put((stream, report))
        self.wake(stream)


class SendingPlanes(_Planes[SendingEnd]):
    """The draft's ends: at most one for each target of a stream, the newest."""

    def __init__(self, device: torch.device | str) -> None:
        super().__init__(device)
        self._by_target: dict[tuple[int, int], SendingEnd] = {}

    def order(self, stream: int, order: types_pb2.PlaneOrder) -> None:
        """See PlaneSide."""
        if not self._takes(stream, order):
            return
        end = SendingEnd(
            order.plane,
            order.limit_s,
            lambda: open_draft_end(order, self._device),
            lambda report: self._tell(stream, report),
        )
        self._by_target[stream, order.target] = end
        self._begin(stream, end)

    def bundle(self, stream: int, target: int) -> Outgoing | None:
        """See LawSender."""
        end = self._by_target.get((stream, target))
        return end.bundle() if end is not None else None

    def _forget(self, stream: int, end: SendingEnd) -> None:
        self._by_target = {key: known for key, known in self._by_target.items() if known is not end}


class ReceivingPlanes(_Planes[ReceivingEnd]):
    """The target's ends, and the store where drafts meet them, which listens from the first order on."""

    def __init__(self, device: torch.device | str, listen: str) -> None:
        """listen: host:port of the store."""
        super().__init__(device)
        self._listen = listen
        self._rendezvous: Rendezvous | None = None

    def order(self, stream: int, order: types_pb2.PlaneOrder) -> None:
        """See PlaneSide."""
        if not self._takes(stream, order):
            return
        try:
            rendezvous = self._rendezvous = self._rendezvous or Rendezvous(self._listen, order.limit_s)
        except Broken as error:
            self._tell(stream, types_pb2.PlaneReport(plane=order.plane, state=BROKEN, reason=str(error)))
            return
        self._tell(stream, types_pb2.PlaneReport(plane=order.plane, state=OPENING, rendezvous=rendezvous.address))
        end = ReceivingEnd(
            order.plane,
            order.limit_s,
            lambda: open_target_end(order, rendezvous, self._device),
            lambda report: self._tell(stream, report),
            lambda: self.wake(stream),
        )
        self._begin(stream, end)

    def law(self, stream: int, ref: LawRef) -> SparseLaw | Absent:
        """See LawReceiver."""
        end = self._ends.get((stream, ref.plane))
        return Absent.CLOSED if end is None else end.laws.law(ref.bundle, ref.row)


class NoPlanes:
    """For a process that takes and gives everything inline."""

    ability = types_pb2.PlaneAbility()

    def __init__(self) -> None:
        self.wake: Callable[[int], None] = lambda stream: None
        self._refused: list[Report] = []

    def order(self, stream: int, order: types_pb2.PlaneOrder) -> None:
        """Refused: nobody was told that it could be done."""
        report = types_pb2.PlaneReport(plane=order.plane, state=BROKEN, reason="this process has no planes")
        self._refused.append((stream, report))

    def close(self, stream: int, plane: int) -> None:
        """There is none."""

    def close_stream(self, stream: int) -> None:
        """There is none."""

    def reports(self) -> list[Report]:
        """The refusals."""
        refused, self._refused = self._refused, []
        return refused

    def bundle(self, stream: int, target: int) -> Outgoing | None:
        """Inline."""
        return None

    def law(self, stream: int, ref: LawRef) -> SparseLaw | Absent:
        """Nothing comes."""
        return Absent.CLOSED
