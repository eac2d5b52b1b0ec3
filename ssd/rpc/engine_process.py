"""The life of a process around one engine: bound, loading, warm, serving, drained. Target and draft share it.

The port is bound before the model loads, so that a taken port fails at once and probes see NOT_SERVING instead of
nothing. Signals work from the first moment on.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import structlog

from ssd.rpc.engine_loop import Engine, EngineLoop
from ssd.rpc.server import Server, StartupError
from ssd.telemetry.trace import NO_TRACER, Tracer

_REPORT_EVERY_S = 1.0
_ABANDON_LOADING_AFTER_S = 2.0
_SWITCH_S = 0.0002
"""After this long the engine's thread lets the event loop run. It begins its next step while what the last one had to
say is still to be sent, and Python's own 5 ms may keep that back until the step waits for the device."""

SomeEngine = TypeVar("SomeEngine", bound=Engine[Any, Any])

log = structlog.get_logger()


class LoadingCancelled(Exception):
    """The process is asked to end while it loads."""


class LoadProgress:
    """Reports loading in the log, at most once a second, and is where a cancelled loading ends."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._reported = time.monotonic()
        self._finished = False

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` bytes are there. Raises LoadingCancelled after cancel()."""
        if self._cancelled.is_set():
            raise LoadingCancelled
        now = time.monotonic()
        finished = done >= total and not self._finished
        if now - self._reported >= _REPORT_EVERY_S or finished:
            self._reported, self._finished = now, done >= total
            log.info("loading", percent=100 * done // max(1, total), megabytes=round(total / 1e6))

    def cancel(self) -> None:
        self._cancelled.set()


async def run_engine(
    server: Server,
    build: Callable[[LoadProgress], SomeEngine],
    ready: Callable[[SomeEngine, EngineLoop[Any, Any]], None],
    drain_s: float,
    tracer: Tracer = NO_TRACER,
) -> int:
    """Run a started `server` around the engine that `build` loads and warms up on a thread; returns the exit status.

    `ready` gets the engine and its running loop; after it the services are SERVING. A ValueError or OSError of `build`
    becomes a StartupError. When the engine dies the services turn NOT_SERVING and the status is 1. tracer: closed here.
    """
    sys.setswitchinterval(_SWITCH_S)
    loop: EngineLoop[Any, Any] | None = None
    progress = LoadProgress()

    async def before_stop() -> None:
        if loop is not None:
            await loop.drain(drain_s)

    def on_death(error: BaseException) -> None:
        log.critical("the engine is dead, the process ends", error=str(error))
        server.end(1)

    serving = asyncio.create_task(server.run(drain_s, before_stop))
    loading, thread = _on_thread(build, progress)
    try:
        either: set[asyncio.Future[Any]] = {serving, loading}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            loading.cancel()
            progress.cancel()
            await asyncio.to_thread(thread.join, _ABANDON_LOADING_AFTER_S)
            return await serving
        engine = _built(loading)
        loop = EngineLoop(engine, on_death, tracer)
        loop.start()
        ready(engine, loop)
        await server.set_serving(True)
        log.info("serving", address=server.address)
        return await serving
    finally:
        if not serving.done():
            serving.cancel()
            await server.grpc.stop(0)
            if loop is not None:
                await loop.drain(0.0)
        await asyncio.to_thread(tracer.close)


def _built(loading: asyncio.Future[SomeEngine]) -> SomeEngine:
    try:
        return loading.result()
    except (ValueError, OSError) as error:
        raise StartupError(str(error)) from error


def _on_thread(
    build: Callable[[LoadProgress], SomeEngine], progress: LoadProgress
) -> tuple[asyncio.Future[SomeEngine], threading.Thread]:
    """Run build(progress) on a thread that does not keep the process alive."""
    event_loop = asyncio.get_running_loop()
    future: asyncio.Future[SomeEngine] = event_loop.create_future()

    def settle(put: Callable[[Any], None], value: object) -> None:
        if not future.done():
            put(value)

    def work() -> None:
        put: Callable[[Any], None] = future.set_result
        value: object
        try:
            value = build(progress)
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is waited for
            put, value = future.set_exception, error
        if not event_loop.is_closed():
            event_loop.call_soon_threadsafe(settle, put, value)

    thread = threading.Thread(target=work, name="loading", daemon=True)
    thread.start()
    return future, thread
