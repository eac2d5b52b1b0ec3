"""The thread that owns an engine: drain the inbox, run a step, publish. Target and draft share it.

asyncio stays on its own thread, so pings are answered while a step runs and a hung step shows as `busy_ms`.
"""

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

import structlog

from protos.ssd.v1 import types_pb2
from ssd.rpc.status import ApiError, exhausted, unavailable
from ssd.telemetry.trace import NO_TRACER, Tracer

Request_contra = TypeVar("Request_contra", contravariant=True)
Response_co = TypeVar("Response_co", covariant=True)
In = TypeVar("In")
Out = TypeVar("Out")

_DRAIN_POLL_S = 0.02
_STOP_WITHIN_S = 3.0
_LOOK_S = 0.001  # between two looks whether the device is still busy

log = structlog.get_logger()


class Engine(Protocol[Request_contra, Response_co]):
    """A step-wise engine without IO. All calls come from one thread."""

    def handle(self, stream: int, request: Request_contra) -> None:
        """Take in one message of a stream. Must not raise for anything a peer can send."""

    def close_stream(self, stream: int) -> None:
        """Drop everything that was opened on a stream."""

    def begin(self, now: float) -> None:
        """Begin the heavy part of at most one step, at monotonic time `now` (seconds)."""

    def busy_for(self, now: float) -> float:
        """Seconds for which the device will surely be busy with what was begun; 0 when it may be over."""

    def wait(self) -> None:
        """Wait until it is over."""

    def finish(self, now: float | None = None) -> Mapping[int, Response_co]:
        """Conclude the step with all that was handled since it began; at most one message for each stream.

        now   monotonic time in seconds, from which the engine tells how long the step took; None = not timed

        Separate from `begin` so that a prediction which arrives during a step is there when its outcome is known. Waits
        if `wait` was not called.
        """

    def wake_at(self, now: float) -> float | None:
        """When the next step should begin if no message comes: `now` = at once, None = never."""

    def load(self) -> types_pb2.EngineLoad:
        """Occupancy."""


class Outbox(Generic[Out]):
    """Messages of one stream on their way out; bounded, because a peer that stops reading must not fill memory."""

    def __init__(self, limit: int = 4096) -> None:
        self._queue: asyncio.Queue[Out | None] = asyncio.Queue(limit)
        self._overflowed = False
        self.error = exhausted("the peer does not read its stream")

    def put(self, message: Out) -> None:
        """Add a message, on the event loop. After an overflow the stream is broken off, so later ones do not matter."""
        self._put(message)

    def end(self, error: ApiError) -> None:
        """Break the stream off with `error` once everything before is delivered."""
        self.error = error
        self._put(None)

    async def get(self) -> Out | None:
        """The next message; None when the stream is to be broken off with `error`."""
        return None if self._overflowed else await self._queue.get()

    def _put(self, message: Out | None) -> None:
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            self._overflowed = True


class EngineLoop(Generic[In, Out]):
    """Runs an Engine on its own thread and moves messages between it and the event loop."""

    def __init__(
        self, engine: Engine[In, Out], on_death: Callable[[BaseException], None], tracer: Tracer = NO_TRACER
    ) -> None:
        """`on_death` is called on the event loop when the engine raised: the process must then end, non-zero."""
        self._engine = engine
        self._on_death = on_death
        self._tracer = tracer
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._outboxes: dict[int, Outbox[Out]] = {}
        self._next_stream = 1
        self._busy_since: float | None = None
        self._load = engine.load()
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread; must be called on the running event loop."""
        self._event_loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end after its current step; False if it has not within `timeout_s`."""
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join, timeout_s)
        return not self._thread.is_alive()

    async def drain(self, timeout_s: float) -> None:
        """Let live sequences end for up to `timeout_s`, then break all streams off and stop the thread."""
        deadline = time.monotonic() + timeout_s
        while self._thread.is_alive() and self._load.running + self._load.waiting > 0 and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_POLL_S)
        for outbox in self._outboxes.values():
            outbox.end(unavailable("DRAINING", "the process is going down"))
        if self._thread.is_alive() and not await self.stop(_STOP_WITHIN_S):
            log.error("the engine does not end its step", busy_ms=self.busy_ms)

    def attach(self) -> tuple[int, Outbox[Out]]:
        """A new stream number and its outbox."""
        stream, self._next_stream = self._next_stream, self._next_stream + 1
        outbox: Outbox[Out] = Outbox()
        self._outboxes[stream] = outbox
        return stream, outbox

    def detach(self, stream: int) -> None:
        """The stream has ended: its sequences are closed before the next step."""
        self._outboxes.pop(stream, None)
        self._inbox.put(lambda: self._engine.close_stream(stream))

    def submit(self, stream: int, request: In) -> None:
        """Hand a message to the engine."""
        self._inbox.put(lambda: self._engine.handle(stream, request))

    @property
    def load(self) -> types_pb2.EngineLoad:
        """Occupancy as of the last step."""
        return self._load

    @property
    def busy_ms(self) -> int:
        """How long the current step has been running, milliseconds; 0 when idle."""
        since = self._busy_since
        return 0 if since is None else max(1, int((time.monotonic() - since) * 1000))

    def _run(self) -> None:
        try:
            while self._sleep():
                self._busy_since = time.monotonic()
                self._engine.begin(self._busy_since)
                going_on = self._meanwhile()
                self._engine.wait()
                going_on = self._drain() and going_on
                finishing = time.monotonic()
                responses = self._engine.finish(finishing)
                self._load = self._engine.load()
                self._tracer.span("engine", "finish", finishing, self._tracer.now(), messages=len(responses))
                self._busy_since = None
                if responses:
                    self._call(self._publish, responses)
                if not going_on:
                    return
        except BaseException as error:  # the thread ends, and the process with it
            log.exception("engine died")
            self._call(self._on_death, error)

    def _sleep(self) -> bool:
        """Wait until there is a message or the engine wants to run, and take in all messages; False = stop."""
        now = time.monotonic()
        wake_at = self._engine.wake_at(now)
        timeout = None if wake_at is None else max(0.0, wake_at - now)
        if timeout == 0.0:
            return self._drain()
        try:
            action = self._inbox.get(timeout=timeout)
        except queue.Empty:
            return True
        finally:
            self._tracer.span("engine", "wait", now, self._tracer.now())
        if action is None:
            return False
        action()
        return self._drain()

    def _meanwhile(self) -> bool:
        """Take in messages while the device works, when they cost nobody time; False = stop after this step."""
        going_on = True
        while (left := self._engine.busy_for(time.monotonic())) > 0.0:
            with contextlib.suppress(queue.Empty):
                action = self._inbox.get(timeout=min(left, _LOOK_S))
                if action is None:
                    going_on = False
                else:
                    action()
        return going_on

    def _drain(self) -> bool:
        """Take in every waiting message; False = stop."""
        try:
            while (action := self._inbox.get_nowait()) is not None:
                action()
            return False
        except queue.Empty:
            return True

    def _publish(self, responses: Mapping[int, Out]) -> None:
        for stream, response in responses.items():
            if (outbox := self._outboxes.get(stream)) is not None:
                outbox.put(response)

    def _call(self, function: Callable, *arguments: object) -> None:
        loop = self._event_loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(function, *arguments)
