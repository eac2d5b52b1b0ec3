"""DraftService over gRPC: hands streams to the engine's loop."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from draft_service.engine import DraftEngine
from protos.ssd.v1 import draft_pb2, draft_pb2_grpc
from ssd.epoch import new_epoch
from ssd.rpc.engine_loop import EngineLoop
from ssd.rpc.stream_server import StreamServer, StreamServicer

SERVICE = "ssd.v1.DraftService"

Request = draft_pb2.DraftServiceServeRequest
Response = draft_pb2.DraftServiceServeResponse


class DraftServicer(StreamServicer[Request, Response], draft_pb2_grpc.DraftServiceServicer):
    """UNAVAILABLE until `begin`."""

    def begin(self, engine: DraftEngine, loop: EngineLoop[Request, Response]) -> None:
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
        self, request: draft_pb2.DraftServiceGetStatusRequest, context: grpc.aio.ServicerContext
    ) -> draft_pb2.DraftServiceGetStatusResponse:
        """Identity and occupancy as of the last step."""
        streams = await self.streams(context)
        return draft_pb2.DraftServiceGetStatusResponse(
            epoch=streams.welcome.epoch, model=streams.welcome.model, load=streams.loop.load
        )
