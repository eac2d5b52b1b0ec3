"""The router process: bind, load the tokenizer, connect, prove that it generates, serve, drain."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import structlog

from protos.ssd.v1 import admin_pb2_grpc, inference_pb2_grpc
from router.admin import AdminServicer
from router.gate import Gate
from router.generation import Generations
from router.health import ADMIN, INFERENCE, Health
from router.hub import Hub
from router.inference import InferenceServicer
from router.metrics import HubCollector
from router.resolve import resolve
from router.tokenization import load_tokenization
from ssd.config import RouterConfig
from ssd.epoch import new_epoch
from ssd.errors import FieldError
from ssd.rpc.server import Server, StartupError
from ssd.rpc.status import unavailable
from ssd.telemetry import logging
from ssd.telemetry.endpoint import PATH, metrics_endpoint
from ssd.telemetry.metrics import Metrics
from ssd.telemetry.trace import open_tracer

# After the drain: time for the last statuses to go out.
LAST_WORDS_S = 0.5

log = structlog.get_logger()


def main(config: RouterConfig) -> int:
    """Run the process; returns its exit status. StartupError says why it cannot start."""
    logging.configure(service="router")
    return asyncio.run(serve(config))


async def serve(config: RouterConfig) -> int:
    """Serve until a signal (drain, then 0) or a fault (1). Raises StartupError.

    The port is bound first, so that a taken one fails at once; until a target has generated a token, calls are answered
    with UNAVAILABLE and the health of ssd.v1.InferenceService is NOT_SERVING.
    """
    server = Server(config.listen, (INFERENCE, ADMIN))
    gate, epoch, metrics = Gate(), new_epoch(), Metrics()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(InferenceServicer(gate, metrics), server.grpc)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminServicer(gate, epoch), server.grpc)
    await server.start()
    log.info("listening", address=server.address, model=config.model)
    work = asyncio.create_task(_work(config, server, gate, epoch, metrics))
    work.add_done_callback(lambda _: server.end(1))
    try:
        # By then all generations have ended; who is left only watches.
        status = await server.run(LAST_WORDS_S, linger=lambda: _drain(gate, 0.0 if work.done() else config.drain_s))
    finally:
        work.cancel()
        await asyncio.wait({work})
        await server.grpc.stop(0)
    if not work.cancelled() and (error := work.exception()) is not None:
        raise _cause(error)
    return status


async def _work(config: RouterConfig, server: Server, gate: Gate, epoch: int, metrics: Metrics) -> None:
    """Everything behind the port, until cancelled."""
    health = Health(config, server)
    await health.begin()
    directory = await resolve(config.model)
    try:
        tokenization = await asyncio.to_thread(load_tokenization, directory)
        tracer = open_tracer(config.trace, "router")
    except FieldError as error:
        raise StartupError(str(error)) from error
    hub = Hub(config, tokenization.tokenizer, epoch, metrics, tracer)
    metrics.add(HubCollector(hub))
    generations = Generations(config, config.model_name or Path(config.model).name, tokenization, hub)
    gate.attach(generations)
    async with _measured(config.metrics_listen, metrics), asyncio.TaskGroup() as group:
        group.create_task(hub.run(), name="peers")
        group.create_task(health.keep(generations, gate), name="health")


@contextlib.asynccontextmanager
async def _measured(listen: str, metrics: Metrics) -> AsyncIterator[None]:
    """Metrics over HTTP, where that is wanted. Raises StartupError for an address that cannot be bound."""
    if not listen:
        yield
        return
    async with contextlib.AsyncExitStack() as stack:
        try:
            address = await stack.enter_async_context(metrics_endpoint(listen, metrics.registry))
        except OSError as error:
            raise StartupError(f"metrics_listen: cannot listen on {listen}: {error.strerror}") from error
        log.info("metrics", url=f"http://{address}{PATH}")
        yield


async def _drain(gate: Gate, limit_s: float) -> None:
    """Refuse new requests with UNAVAILABLE, let live ones end within limit_s, then end them with UNAVAILABLE too."""
    reason = unavailable("DRAINING", "the router is shutting down")
    gate.close(reason)
    hub = gate.hub
    if hub is not None and not await _idle(hub, limit_s):
        log.warning("drain ends with live requests", live=hub.live)
        hub.fail_all(reason)
        await _idle(hub, LAST_WORDS_S)


async def _idle(hub: Hub, limit_s: float) -> bool:
    try:
        async with asyncio.timeout(limit_s):
            await hub.idle()
    except TimeoutError:
        return False
    return True


def _cause(error: BaseException) -> BaseException:
    """The first plain exception inside the groups of tasks."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
