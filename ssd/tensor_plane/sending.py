"""The draft's ends: laws are collected into a bundle for each message, and leave on the plane's own thread."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable

from protos.ssd.v1 import types_pb2
from ssd.speculation.law import LawRef, Laws, SparseLaw
from ssd.tensor_plane.channel import MOST_BYTES, Channel, Measured
from ssd.tensor_plane.end import OPEN, End
from ssd.tensor_plane.packing import pack, packed_bytes

QUEUED = 64
"""Bundles on their way out. A target that is slower than that gets laws inline."""


class Outgoing:
    """The bundle of one message while it is being written."""

    def __init__(self, plane: int, number: int, post: Callable[[Outgoing], None]) -> None:
        self.plane = plane
        self.number = number
        self.laws: list[SparseLaw] = []
        self._pairs = 0
        self._post = post

    def refer(self, laws: Laws) -> Laws:
        """Take laws in; returns what stands for them. Those that the bundle has no room for stand for themselves."""
        here = [law for law in laws if isinstance(law, SparseLaw)]
        pairs = self._pairs + sum(len(law.ids) for law in here)
        if len(here) != len(laws) or packed_bytes(len(self.laws) + len(here), pairs) > MOST_BYTES:
            return laws
        first = len(self.laws)
        self._pairs = pairs
        self.laws += here
        return tuple(LawRef(self.plane, self.number, first + i) for i in range(len(here)))

    def post(self) -> None:
        """The message is complete: send what was taken in, if anything."""
        if self.laws:
            self._post(self)


class SendingEnd(End):
    """See End. Everything public but `start` and `join` is for one thread, the engine's."""

    def __init__(
        self,
        number: int,
        limit_s: float,
        connect: Callable[[], Channel],
        tell: Callable[[types_pb2.PlaneReport], None],
    ) -> None:
        super().__init__(number, limit_s, connect, tell)
        self._queue: queue.Queue[Outgoing | None] = queue.Queue(QUEUED + 1)
        self._numbers = itertools.count(1)

    def bundle(self) -> Outgoing | None:
        """A new bundle; None while the plane is not open, or does not keep up."""
        if self.state != OPEN or self._queue.qsize() >= QUEUED:
            return None
        return Outgoing(self.number, next(self._numbers), self._post)

    def _post(self, bundle: Outgoing) -> None:
        try:
            self._queue.put_nowait(bundle)
        except queue.Full:
            self._fail("the target does not take bundles in")

    def _begin(self, channel: Channel) -> Measured:
        return channel.begin_sending()

    def _serve(self, channel: Channel) -> None:
        while self.state == OPEN:
            try:
                bundle = self._queue.get(timeout=self.beat_s)
            except queue.Empty:
                with self._step("a sign of life"):
                    channel.beat()
                continue
            if bundle is None:
                return
            with self._step("sending"):
                channel.send(bundle.number, pack(bundle.laws))

    def _ended(self) -> None:
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            return  # the thread is awake, and sees the state
