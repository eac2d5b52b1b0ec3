"""The serving side of a `Serve` stream: handshake, pings, and an engine on the other side of two queues."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import grpc
import structlog

from protos.ssd.v1 import types_pb2
from ssd.rpc.engine_loop import EngineLoop, Outbox
from ssd.rpc.status import abort, unavailable

HELLO_WITHIN_S = 10.0

log = structlog.get_logger()


class ServeRequest(Protocol):
    """What the two services' request envelopes have in common."""

    hello: types_pb2.Hello
    ping: types_pb2.Ping

    def HasField(self, name: str) -> bool: ...  # noqa: N802 - protobuf's name

    def ClearField(self, name: str) -> None: ...  # noqa: N802

    def ByteSize(self) -> int: ...  # noqa: N802


In = TypeVar("In", bound=ServeRequest)
Out = TypeVar("Out")


@dataclass(frozen=True)
class StreamServer(Generic[In, Out]):
    """Serves any number of streams from one engine loop."""

    loop: EngineLoop[In, Out]
    envelope: Any  # the response message type; has the fields `welcome` and `pong`
    welcome: types_pb2.Welcome

    async def serve(self, requests: AsyncIterator[In], context: grpc.aio.ServicerContext) -> AsyncIterator[Out]:
        """Answer one stream until the peer leaves; then everything it opened is closed."""
        first = await self._handshake(requests, context)
        caller = first.hello.caller
        stream, outbox = self.loop.attach()
        log.info("stream opened", caller=caller, stream=stream)
        outbox.put(self.envelope(welcome=self.welcome))
        first.ClearField("hello")
        if first.ByteSize():
            self.loop.submit(stream, first)
        reader = asyncio.create_task(self._read(stream, requests, outbox))
        try:
            while True:
                message = await _first(outbox.get(), reader)
                if message is _READER_ENDED:
                    return
                if message is None:
                    await abort(context, outbox.error)
                yield message
        finally:
            reader.cancel()
            self.loop.detach(stream)
            log.info("stream closed", caller=caller, stream=stream)

    async def _handshake(self, requests: AsyncIterator[In], context: grpc.aio.ServicerContext) -> In:
        try:
            async with asyncio.timeout(HELLO_WITHIN_S):
                first = await anext(requests, None)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no hello within {HELLO_WITHIN_S:.0f} s")
        if first is None or not first.HasField("hello"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "hello: must be in the first message of the stream")
        return first

    async def _read(self, stream: int, requests: AsyncIterator[In], outbox: Outbox[Out]) -> None:
        async for request in requests:
            if request.HasField("ping"):
                pong = types_pb2.Pong(nonce=request.ping.nonce, load=self.loop.load, busy_ms=self.loop.busy_ms)
                outbox.put(self.envelope(pong=pong))
                request.ClearField("ping")
            if request.ByteSize():
                self.loop.submit(stream, request)


class StreamServicer(Generic[In, Out]):
    """The state of a servicer around a StreamServer that comes to be when the model is loaded."""

    def __init__(self) -> None:
        self._streams: StreamServer[In, Out] | None = None

    def serve_with(self, streams: StreamServer[In, Out]) -> None:
        """The engine is ready and its loop runs."""
        self._streams = streams

    async def streams(self, context: grpc.aio.ServicerContext) -> StreamServer[In, Out]:
        """The server of streams; until there is one, calls end with UNAVAILABLE."""
        return self._streams or await abort(context, unavailable("STARTING", "the model is still loading"))


_READER_ENDED = object()


async def _first(message: Any, reader: asyncio.Task) -> Any:
    """The outcome of `message`, or _READER_ENDED if the peer closed its side first."""
    getter = asyncio.ensure_future(message)
    try:
        done, _ = await asyncio.wait({getter, reader}, return_when=asyncio.FIRST_COMPLETED)
        if getter in done:
            return getter.result()
        if not reader.cancelled() and (error := reader.exception()) is not None:
            log.warning("stream broke", error=str(error))
        return _READER_ENDED
    finally:
        getter.cancel()
