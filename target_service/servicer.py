"""TargetService over gRPC: hands streams to the engine's loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NoReturn

import grpc

from protos.ssd.v1 import target_pb2, target_pb2_grpc
from ssd.epoch import new_epoch
from ssd.rpc.engine_loop import EngineLoop
from ssd.rpc.status import abort, unavailable
from ssd.rpc.stream_server import StreamServer
from target_service.engine import TargetEngine

SERVICE = "ssd.v1.TargetService"

Request = target_pb2.TargetServiceServeRequest
Response = target_pb2.TargetServiceServeResponse


class TargetServicer(target_pb2_grpc.TargetServiceServicer):
    """UNAVAILABLE until `begin`."""

    def __init__(self) -> None:
        self._epoch = new_epoch()
        self._streams: StreamServer[Request, Response] | None = None

    def begin(self, engine: TargetEngine, loop: EngineLoop[Request, Response]) -> None:
        """The engine is ready and its loop runs."""
        self._streams = StreamServer(loop, Response, engine.welcome(self._epoch))

    async def Serve(  # noqa: N802 - gRPC's name
        self, requests: AsyncIterator[Request], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[Response]:
        """One router's stream."""
        streams = self._streams or await _not_ready(context)
        async for response in streams.serve(requests, context):
            yield response

    async def GetStatus(  # noqa: N802 - gRPC's name
        self, request: target_pb2.TargetServiceGetStatusRequest, context: grpc.aio.ServicerContext
    ) -> target_pb2.TargetServiceGetStatusResponse:
        """Identity and occupancy as of the last step."""
        streams = self._streams or await _not_ready(context)
        return target_pb2.TargetServiceGetStatusResponse(
            epoch=streams.welcome.epoch, model=streams.welcome.model, load=streams.loop.load
        )


async def _not_ready(context: grpc.aio.ServicerContext) -> NoReturn:
    await abort(context, unavailable("STARTING", "the model is still loading"))
