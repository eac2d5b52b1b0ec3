"""The shell around every service process: bind, health, reflection, signals, drain, exit status."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Sequence

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from ssd.rpc.options import SERVER_OPTIONS

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING

log = structlog.get_logger()


class StartupError(Exception):
    """The process cannot start; the message says what to do about it."""


class Server:
    """A grpc.aio server with health and reflection, and the reasons for which the process may end."""

    def __init__(self, listen: str, services: Sequence[str]) -> None:
        """`services`: full names, for health and reflection. Every name starts NOT_SERVING; "" (the process) SERVING."""
        self.listen = listen
        self.services = tuple(services)
        self.grpc = grpc.aio.server(options=SERVER_OPTIONS)
        self.health = health.aio.HealthServicer()
        self.port = 0
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.grpc)
        self._add_reflection()

    def _add_reflection(self) -> None:
        names = (*self.services, health.SERVICE_NAME, reflection.SERVICE_NAME, "grpc.reflection.v1.ServerReflection")
        servicer = reflection.aio.ReflectionServicer(service_names=names)
        handler = grpc.stream_stream_rpc_method_handler(
            servicer.ServerReflectionInfo,
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        # v1 and v1alpha have the same messages; grpcio ships only the older name and newer tools ask for the other.
        for name in (reflection.SERVICE_NAME, "grpc.reflection.v1.ServerReflection"):
            generic = grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler})
            self.grpc.add_generic_rpc_handlers((generic,))

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

    async def run(self, drain_s: float, before_stop: Callable[[], Awaitable[None]] | None = None) -> int:
        """Serve until a signal (drain, then 0) or `end`; returns the exit status. A second signal cuts the drain short."""
        force = asyncio.Event()
        with _signals(lambda: force.set() if self._ended.done() else self.end(0)):
            status = await self._ended
            log.info("stopping", status=status, drain_s=drain_s if status == 0 else 0)
            await self.health.enter_graceful_shutdown()
            stop = asyncio.create_task(self.grpc.stop(drain_s if status == 0 else 0))
            forced = asyncio.create_task(force.wait())
            if before_stop is not None:
                await before_stop()
            await asyncio.wait({stop, forced}, return_when=asyncio.FIRST_COMPLETED)
            forced.cancel()
            if not stop.done():
                await self.grpc.stop(0)
        return status


@contextlib.contextmanager
def _signals(handler: Callable[[], None]):
    """Route SIGTERM and SIGINT to `handler` on the event loop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
