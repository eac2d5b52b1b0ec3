"""The shell around every service process: bind, health, reflection, signals, drain, exit status."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from ssd.rpc.options import SERVER_OPTIONS
from ssd.rpc.reflection import add_reflection

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING

log = structlog.get_logger()


class StartupError(Exception):
    """The process cannot start; the message says what to do about it."""


class Server:
    """A grpc.aio server with health and reflection, and the reasons for which the process may end."""

    def __init__(self, listen: str, services: Sequence[str]) -> None:
        """`services`: full names, for health and reflection. They start NOT_SERVING, "" (the process) SERVING."""
        self.listen = listen
        self.services = tuple(services)
        self.grpc = grpc.aio.server(options=SERVER_OPTIONS)
        self.health = health.aio.HealthServicer()
        self.port = 0
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.grpc)
        add_reflection(self.grpc, (*self.services, health.SERVICE_NAME))

    async def start(self) -> None:
        """Bind and listen. Raises StartupError if the address cannot be bound."""
        try:
            self.port = self.grpc.add_insecure_port(self.listen)
        except RuntimeError:
            self.port = 0
        if self.port == 0:
            raise StartupError(
                f"listen: cannot bind {self.listen}: the port is in use or the address is not this machine's"
            )
        for name in self.services:
            await self.health.set(name, NOT_SERVING)
        await self.grpc.start()

    @property
    def address(self) -> str:
        """host:port actually bound."""
        return f"{self.listen.rpartition(':')[0]}:{self.port}"

    async def set_serving(self, serving: bool, *names: str) -> None:
        """Set the health of `names` (default: all services)."""
        for name in names or self.services:
            await self.health.set(name, SERVING if serving else NOT_SERVING)

    def end(self, status: int) -> None:
        """Let `run` return `status`; the first reason wins."""
        if not self._ended.done():
            self._ended.set_result(status)

    async def run(
        self,
        drain_s: float,
        before_stop: Callable[[], Awaitable[None]] | None = None,
        linger: Callable[[], Awaitable[None]] | None = None,
    ) -> int:
        """Serve until a signal (drain, then 0) or `end`; returns the exit status. A second signal cuts the drain.

        `linger` comes first, with the port still open: whoever refuses new calls with a status of its own loses none to
        the moment in which the transport shuts. Then the port closes, and `before_stop` helps the rest to end.
        """
        force = asyncio.Event()
        with _signals(lambda: force.set() if self._ended.done() else self.end(0)):
            status = await self._ended
            log.info("stopping", status=status, drain_s=drain_s if status == 0 else 0)
            await self.health.enter_graceful_shutdown()
            stop = asyncio.create_task(self._stop(drain_s if status == 0 else 0, before_stop, linger))
            forced = asyncio.create_task(force.wait())
            await asyncio.wait({stop, forced}, return_when=asyncio.FIRST_COMPLETED)
            forced.cancel()
            if stop.done():
                stop.result()
            else:
                stop.cancel()
                await self.grpc.stop(0)
        return status

    async def _stop(
        self,
        grace_s: float,
        before_stop: Callable[[], Awaitable[None]] | None,
        linger: Callable[[], Awaitable[None]] | None,
    ) -> None:
        """Close the port after `linger`; calls being served have `grace_s`, while `before_stop` helps them to end."""
        if linger is not None:
            await linger()
        async with asyncio.TaskGroup() as both:
            both.create_task(self.grpc.stop(grace_s))
            if before_stop is not None:
                both.create_task(_run(before_stop))


async def _run(function: Callable[[], Awaitable[None]]) -> None:
    await function()


@contextlib.contextmanager
def _signals(handler: Callable[[], None]) -> Iterator[None]:
    """Route SIGTERM and SIGINT to `handler` on the event loop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
