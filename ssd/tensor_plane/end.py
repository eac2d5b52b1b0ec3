"""One end of one plane: the thread that owns its channel, and what it says of itself.

Nobody waits for an end. Its thread opens the channel, measures it and serves it; everything on that thread has a limit,
and a guard on another thread declares the plane broken when a limit passes without an answer of the library.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager

import structlog

from protos.ssd.v1 import types_pb2
from ssd.tensor_plane.channel import Broken, Channel, Measured
from ssd.tensor_plane.guard import Guard

# Store, link, carrier: each has the limit for itself.
_OPENING_LIMITS = 3.0
# A wait that keeps its own limit is over by then.
_STALLED_LIMITS = 1.5
# Signs of life in one limit.
_BEATS = 4

OPENING = types_pb2.PLANE_STATE_OPENING
OPEN = types_pb2.PLANE_STATE_OPEN
BROKEN = types_pb2.PLANE_STATE_BROKEN

log = structlog.get_logger()


class End(ABC):
    """Begins OPENING, becomes OPEN, and ends BROKEN or closed; never goes back."""

    def __init__(
        self,
        number: int,
        limit_s: float,
        connect: Callable[[], Channel],
        tell: Callable[[types_pb2.PlaneReport], None],
    ) -> None:
        """connect: opens the channel, on this end's thread. tell: called from this end's threads."""
        self.number = number
        self.state: types_pb2.PlaneState = OPENING
        self._limit_s = limit_s
        self._connect = connect
        self._tell = tell
        self._lock = threading.Lock()
        self._closed = False
        self._channel: Channel | None = None
        name = f"plane {number}"
        self._guard = Guard(name, lambda doing: self._fail(f"{doing} took too long"), self._abort)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the threads."""
        self._guard.start()
        self._thread.start()

    def close(self) -> None:
        """Give the plane up, from any thread; never waits. Nothing is told of it."""
        with self._lock:
            self._closed = True
        self._ended()
        self._guard.close()

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads; False if one has not ended in time. The guard's is the last to hold the channel."""
        deadline = time.monotonic() + timeout_s
        self._thread.join(timeout_s)
        return self._guard.join(max(0.0, deadline - time.monotonic())) and not self._thread.is_alive()

    @property
    def beat_s(self) -> float:
        """Between signs of life."""
        return self._limit_s / _BEATS

    @abstractmethod
    def _begin(self, channel: Channel) -> Measured:
        """Measure the channel together with the other end."""

    @abstractmethod
    def _serve(self, channel: Channel) -> None:
        """Until closed; raises Broken."""

    @abstractmethod
    def _ended(self) -> None:
        """Closed or broken: wake the thread, let go of what is held. May be called twice."""

    def _step(self, doing: str) -> AbstractContextManager[None]:
        """A block that may take no longer than the limit."""
        return self._guard.within(_STALLED_LIMITS * self._limit_s, doing)

    def _run(self) -> None:
        try:
            with self._guard.within(_OPENING_LIMITS * self._limit_s, "opening"):
                channel = self._channel = self._connect()
                measured = self._begin(channel)
            if self._opened(measured):
                self._serve(channel)
        except Broken as error:
            self._fail(str(error))
        except Exception as error:  # whatever a library raises ends the plane and nothing else
            log.exception("tensor plane", plane=self.number)
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._guard.close()

    def _opened(self, measured: Measured) -> bool:
        with self._lock:
            if self._closed or self.state != OPENING:
                return False
            self.state = OPEN
        latency_us = measured.latency_s * 1e6
        self._say(OPEN, latency_us=latency_us, bandwidth=measured.bandwidth)
        return True

    def _fail(self, reason: str) -> None:
        with self._lock:
            if self._closed or self.state == BROKEN:
                return
            self.state = BROKEN
        self._ended()
        self._say(BROKEN, reason=reason)
        self._guard.close()

    def _say(
        self, state: types_pb2.PlaneState, *, reason: str = "", latency_us: float = 0, bandwidth: float = 0
    ) -> None:
        self._tell(
            types_pb2.PlaneReport(
                plane=self.number, state=state, reason=reason, latency_us=latency_us, bandwidth=bandwidth
            )
        )

    def _abort(self) -> None:
        """On the guard's thread, at the end. The channel's sockets and memory go as soon as its thread is done."""
        if self._channel is not None:
            self._channel.abort()
        self._thread.join(_STALLED_LIMITS * self._limit_s)
        self._channel = None
