"""A router in the test's own event loop, in front of fakes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.ssd.v1 import admin_pb2_grpc, inference_pb2, inference_pb2_grpc
from router.main import serve
from ssd.config import RouterConfig
from ssd.rpc.options import CHANNEL_OPTIONS
from ssd.tokenizer import load_tokenizer
from tests.router.fakes import HOST, LIMIT_S, Fake, FakeDraft, FakeTarget, free_port


@dataclass
class Running:
    """A router in this event loop, with clients of its services."""

    config: RouterConfig
    task: asyncio.Task
    channel: grpc.aio.Channel

    def __post_init__(self) -> None:
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    async def until_health(self, name: str, serving: bool) -> None:
        """Wait for a health name, by Watch."""
        wanted = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        async with asyncio.timeout(LIMIT_S):
            call = self.health.Watch(health_pb2.HealthCheckRequest(service=name), wait_for_ready=True)
            try:
                while (await call.read()).status != wanted:
                    pass
            finally:
                call.cancel()

    async def collect(self, request: inference_pb2.GenerateRequest, **options: Any) -> inference_pb2.GenerateResponse:
        """A stream put together by hand, as a client would."""
        whole = inference_pb2.GenerateResponse()
        async for message in self.inference.GenerateStream(request, **options):
            add(whole, message)
        return whole


def add(whole: inference_pb2.GenerateResponse, message: inference_pb2.GenerateStreamResponse) -> None:
    whole.text += message.text
    whole.token_ids.extend(message.token_ids)
    whole.logprobs.extend(message.logprobs)
    for name in ("start", "finish", "usage"):
        if message.HasField(name):
            getattr(whole, name).CopyFrom(getattr(message, name))


@contextlib.asynccontextmanager
async def running(
    model: Path,
    targets: Sequence[FakeTarget],
    drafts: Sequence[FakeDraft] = (),
    *,
    later: Sequence[Fake] = (),
    wait: bool = True,
    options: Sequence[tuple[str, Any]] = (),
    **settings: Any,
) -> AsyncIterator[Running]:
    """Start the fakes, but those that come `later`, and a router; end all of them."""
    digest = load_tokenizer(model).digest
    for fake in (*targets, *drafts):
        fake.digest = fake.digest or digest
        if fake.server is None and fake not in later:
            await fake.start()
    config = RouterConfig(
        **{
            "listen": f"{HOST}:{free_port()}",
            "model": str(model),
            "model_name": "toy",
            "targets": tuple(target.address for target in targets),
            "drafts": tuple(draft.address for draft in drafts),
            "heartbeat_s": 0.05,
            "drain_s": 2.0,
            "peer_timeout_s": 1.0,
            **settings,
        }
    )
    task = asyncio.create_task(serve(config))
    channel = grpc.aio.insecure_channel(config.listen, options=(*CHANNEL_OPTIONS, *options))
    router = Running(config, task, channel)
    try:
        if wait:
            await router.until_health("ssd.v1.InferenceService", True)
            for draft in drafts[:1]:  # the router's own first generation is none of the test's business
                await draft.until(lambda draft=draft: draft.all("closes"))
            for fake in (*targets, *drafts):
                fake.heard.clear()
        yield router
    finally:
        await channel.close()
        task.cancel()
        await asyncio.wait({task}, timeout=LIMIT_S)
        for fake in (*targets, *drafts):
            await fake.stop()


def request(prompt: str = "hello", **fields: Any) -> inference_pb2.GenerateRequest:
    """`max_tokens` for short; other fields as in the proto."""
    stop = fields.pop("stop", None) or inference_pb2.StopParameters()
    if (max_tokens := fields.pop("max_tokens", None)) is not None:
        stop.max_tokens = max_tokens
    if not fields.keys() & {"text", "chat", "token_ids"}:
        fields["text"] = prompt
    return inference_pb2.GenerateRequest(stop=stop, **fields)


async def rest(call: Any) -> list[inference_pb2.GenerateStreamResponse]:
    """Everything that a call read with `read` still brings."""
    messages = []
    while (message := await call.read()) is not grpc.aio.EOF:
        messages.append(message)
    return messages
