"""TargetService over gRPC: hands streams to the engine's loop."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from protos.ssd.v1 import target_pb2, target_pb2_grpc
from ssd.epoch import new_epoch
from ssd.rpc.engine_loop import EngineLoop
from ssd.rpc.stream_server import StreamServer, StreamServicer
from target_service.engine import TargetEngine

SERVICE = "ssd.v1.TargetService"

Request = target_pb2.TargetServiceServeRequest
Response = target_pb2.TargetServiceServeResponse


class TargetServicer(StreamServicer[Request, Response], target_pb2_grpc.TargetServiceServicer):
    """UNAVAILABLE until `begin`."""

    def begin(self, engine: TargetEngine, loop: EngineLoop[Request, Response]) -> None:
        """The engine is ready and its loop runs."""
        # News of the planes goes out with a step, so they begin one.
        engine.planes.wake = lambda stream: loop.submit(stream, Request())
        self.serve_with(StreamServer(loop, Response, engine.welcome(new_epoch())))

    async def Serve(  # noqa: N802 - gRPC's name
        self, requests: AsyncIterator[Request], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[Response]:
        """One router's stream."""
        streams = await self.streams(context)
        async for response in streams.serve(requests, context):
            yield response

    async def GetStatus(  # noqa: N802 - gRPC's name
        self, request: target_pb2.TargetServiceGetStatusRequest, context: grpc.aio.ServicerContext
    ) -> target_pb2.TargetServiceGetStatusResponse:
        """Identity and occupancy as of the last step."""
        streams = await self.streams(context)
        return target_pb2.TargetServiceGetStatusResponse(
            epoch=streams.welcome.epoch, model=streams.welcome.model, load=streams.loop.load
        )
