"""The thread that owns an engine: drain the inbox, run a step, publish. Target and draft share it.

asyncio stays on its own thread, so pings are answered while a step runs and a hung step shows as `busy_ms`.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

import structlog

from protos.ssd.v1 import types_pb2

Request_contra = TypeVar("Request_contra", contravariant=True)
Response_co = TypeVar("Response_co", covariant=True)
In = TypeVar("In")
Out = TypeVar("Out")

log = structlog.get_logger()


class Engine(Protocol[Request_contra, Response_co]):
    """A step-wise engine without IO. All calls come from one thread."""

    def handle(self, stream: int, request: Request_contra) -> None:
        """Take in one message of a stream. Must not raise for anything a peer can send."""

    def close_stream(self, stream: int) -> None:
        """Drop everything that was opened on a stream."""

    def step(self, now: float) -> Mapping[int, Response_co]:
        """Run at most one step at monotonic time `now` (seconds); at most one message for each stream that has news."""

    def wake_at(self, now: float) -> float | None:
        """When step() should run next if no message comes: `now` = at once, None = only a message can bring work."""

    def load(self) -> types_pb2.EngineLoad:
        """Occupancy."""


class Outbox(Generic[Out]):
    """Messages of one stream on their way out; bounded, because a peer that stops reading must not fill memory."""

    def __init__(self, limit: int = 4096) -> None:
        self._queue: asyncio.Queue[Out] = asyncio.Queue(limit)
        self._overflowed = asyncio.Event()

    def put(self, message: Out) -> None:
        """Add a message, on the event loop. After an overflow the stream is broken off, so later ones do not matter."""
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            self._overflowed.set()

    async def get(self) -> Out | None:
        """The next message, or None when the peer has not read for so long that the box ran over."""
        if self._overflowed.is_set():
            return None
        return await self._queue.get()


class EngineLoop(Generic[In, Out]):
    """Runs an Engine on its own thread and moves messages between it and the event loop."""

    def __init__(self, engine: Engine[In, Out], on_death: Callable[[BaseException], None]) -> None:
        """`on_death` is called on the event loop when the engine raised: the process must then end, non-zero."""
        self._engine = engine
        self._on_death = on_death
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

    def attach(self) -> tuple[int, Outbox[Out]]:
        """A new stream number and its outbox."""
        stream, self._next_stream = self._next_stream, self._next_stream + 1
        self._outboxes[stream] = outbox = Outbox()
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
            while self._drain():
                self._busy_since = time.monotonic()
                responses = self._engine.step(self._busy_since)
                self._load = self._engine.load()
                self._busy_since = None
                if responses:
                    self._call(self._publish, responses)
        except BaseException as error:  # the thread ends, and the process with it
            log.exception("engine died")
            self._call(self._on_death, error)

    def _drain(self) -> bool:
        """Take in every waiting message, sleeping until there is one or the engine wants to run; False = stop."""
        now = time.monotonic()
        wake_at = self._engine.wake_at(now)
        timeout = None if wake_at is None else max(0.0, wake_at - now)
        try:
            action = self._inbox.get(timeout=timeout) if timeout != 0.0 else self._inbox.get_nowait()
            while action is not None:
                action()
                action = self._inbox.get_nowait()
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
