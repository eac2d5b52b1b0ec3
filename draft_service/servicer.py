"""DraftService over gRPC: hands streams to the engine's loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NoReturn

import grpc

from draft_service.engine import DraftEngine
from protos.ssd.v1 import draft_pb2, draft_pb2_grpc
from ssd.epoch import new_epoch
from ssd.rpc.engine_loop import EngineLoop
from ssd.rpc.status import abort, unavailable
from ssd.rpc.stream_server import StreamServer

SERVICE = "ssd.v1.DraftService"

Request = draft_pb2.DraftServiceServeRequest
Response = draft_pb2.DraftServiceServeResponse


class DraftServicer(draft_pb2_grpc.DraftServiceServicer):
    """UNAVAILABLE until `begin`."""

    def __init__(self) -> None:
        self._epoch = new_epoch()
        self._streams: StreamServer[Request, Response] | None = None

    def begin(self, engine: DraftEngine, loop: EngineLoop[Request, Response]) -> None:
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
        self, request: draft_pb2.DraftServiceGetStatusRequest, context: grpc.aio.ServicerContext
    ) -> draft_pb2.DraftServiceGetStatusResponse:
        """Identity and occupancy as of the last step."""
        streams = self._streams or await _not_ready(context)
        return draft_pb2.DraftServiceGetStatusResponse(
            epoch=streams.welcome.epoch, model=streams.welcome.model, load=streams.loop.load
        )


async def _not_ready(context: grpc.aio.ServicerContext) -> NoReturn:
    await abort(context, unavailable("STARTING", "the model is still loading"))
