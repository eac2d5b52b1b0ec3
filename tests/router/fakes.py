"""Scripted targets and drafts that speak the real protos over real gRPC."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from protos.ssd.v1 import (
    draft_pb2,
    draft_pb2_grpc,
    target_pb2,
    target_pb2_grpc,
    types_pb2,
)
from ssd.rpc.options import SERVER_OPTIONS
from tests.toy import EOS, VOCAB, write_tokenizer

LIMIT_S = 20.0
HOST = "127.0.0.1"
STORY = "the quick brown fox jumps over the lazy dog, and then it sleeps. "

Blocks = Iterable[Sequence[int]]
Script = Callable[[target_pb2.TargetOpen], Blocks]


def model_directory(path: Path) -> Path:
    """A model as far as a router looks at one: id b is the byte b."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text("{}")
    write_tokenizer(path)
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def story(size: int = 3) -> Script:
    """Blocks of a text that depends on nothing but the index of a token in the output: as a real target would, it goes
    on where a replay left off."""

    def blocks(opened: target_pb2.TargetOpen) -> Blocks:
        index = len(opened.ids) - opened.prompt_len
        while index < opened.limits.max_tokens:
            ids = [ord(STORY[i % len(STORY)]) for i in range(index, min(index + size, opened.limits.max_tokens))]
            index += len(ids)
            yield ids

    return blocks


def text_of(count: int) -> str:
    """The first `count` tokens of the story."""
    return "".join(STORY[i % len(STORY)] for i in range(count))


@dataclass(eq=False)
class Fake:
    """What fakes have in common: a server at one address, and everything that was heard."""

    port: int = field(default_factory=free_port)
    digest: str = ""
    source: str = "fake"
    epoch: int = 1
    vocab_size: int = VOCAB
    context: int = 4096
    kv_tokens: int = 1 << 20
    max_k: int = 8
    deaf: bool = False  # reads, but answers nothing: not even a ping
    busy_ms: int = 0
    ability: types_pb2.PlaneAbility | None = None
    heard: list[Any] = field(default_factory=list)
    server: Any = None
    _outboxes: list[asyncio.Queue] = field(default_factory=list)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def connected(self) -> bool:
        return bool(self._outboxes)

    def all(self, name: str) -> list[Any]:
        """Every item of a repeated field, over all messages heard."""
        return [item for message in self.heard for item in getattr(message, name)]

    async def start(self) -> None:
        self.server = grpc.aio.server(options=SERVER_OPTIONS)
        self.register(self.server)
        assert self.server.add_insecure_port(self.address) == self.port
        await self.server.start()

    async def stop(self) -> None:
        """As abruptly as one process can."""
        if self.server is not None:
            await self.server.stop(0)
            self.server = None

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait for something that follows from messages heard."""
        async with asyncio.timeout(LIMIT_S), self._news:
            await self._news.wait_for(condition)

    def say(self, message: Any) -> None:
        for outbox in self._outboxes:
            outbox.put_nowait(message)

    async def Serve(self, requests: AsyncIterator, context: grpc.aio.ServicerContext) -> AsyncIterator:  # noqa: N802
        outbox: asyncio.Queue = asyncio.Queue()
        first = await anext(aiter(requests))
        assert first.HasField("hello")
        outbox.put_nowait(self.response(welcome=self.welcome()))
        self._outboxes.append(outbox)
        reader = asyncio.create_task(self._read(requests, outbox))
        try:
            while True:
                message = await outbox.get()
                if not self.deaf:
                    yield message
        finally:
            reader.cancel()
            self._outboxes.remove(outbox)
            self.disconnected()
            await self._notify()

    async def _read(self, requests: AsyncIterator, outbox: asyncio.Queue) -> None:
        async for request in requests:
            if request.HasField("ping"):
                pong = types_pb2.Pong(nonce=request.ping.nonce, busy_ms=self.busy_ms, load=self.load())
                outbox.put_nowait(self.response(pong=pong))
                continue
            self.heard.append(request)
            self.take(request, outbox)
            await self._notify()

    async def _notify(self) -> None:
        async with self._news:
            self._news.notify_all()

    def welcome(self) -> types_pb2.Welcome:
        return types_pb2.Welcome(
            epoch=self.epoch,
            max_k=self.max_k,
            max_tokens=self.kv_tokens,
            plane=self.ability,
            model=types_pb2.ModelInfo(
                source=self.source,
                architecture="Fake",
                vocab_size=self.vocab_size,
                context_length=self.context,
                tokenizer_digest=self.digest,
                tokenizer_source=self.source,
                eos_ids=[EOS],
            ),
        )

    def load(self) -> types_pb2.EngineLoad:
        return types_pb2.EngineLoad(running=1, block_size=16)

    response: Any = None

    def register(self, server: Any) -> None:
        raise NotImplementedError

    def take(self, request: Any, outbox: asyncio.Queue) -> None:
        """A message of a router."""

    def disconnected(self) -> None:
        """A stream has ended."""


@dataclass(eq=False)
class FakeTarget(Fake, target_pb2_grpc.TargetServiceServicer):
    """Plays `script` for each sequence, one block a step; `pace` can hold every step back."""

    script: Script = field(default_factory=story)
    refusal: types_pb2.Refused | None = None
    live: dict[int, asyncio.Task] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    rounds: int = 0
    _steps: asyncio.Semaphore | None = None
    response: Any = target_pb2.TargetServiceServeResponse

    def register(self, server: Any) -> None:
        target_pb2_grpc.add_TargetServiceServicer_to_server(self, server)

    def hold(self) -> None:
        """From now on a step happens only when `release` allows it."""
        self._steps = asyncio.Semaphore(0)

    def release(self, steps: int = 1) -> None:
        assert self._steps is not None
        for _ in range(steps):
            self._steps.release()

    def free(self) -> None:
        self.release(1 << 16)

    def take(self, request: Any, outbox: asyncio.Queue) -> None:
        for opened in request.opens:
            if self.refusal is not None:
                refused = types_pb2.Refused(sequence=opened.sequence)
                refused.MergeFrom(self.refusal)
                outbox.put_nowait(self.response(refused=[refused]))
            else:
                self.live[opened.sequence] = asyncio.create_task(self._play(opened, outbox))
        for sequence in request.closes:
            if (task := self.live.pop(sequence, None)) is not None:
                task.cancel()

    def disconnected(self) -> None:
        for task in self.live.values():
            task.cancel()
        self.live.clear()

    async def _play(self, opened: target_pb2.TargetOpen, outbox: asyncio.Queue) -> None:
        length, output = len(opened.ids), len(opened.ids) - opened.prompt_len
        for ids in self.script(opened):
            if self._steps is not None:
                await self._steps.acquire()
            outcome = target_pb2.StepOutcome(sequence=opened.sequence, base_len=length, ids=ids)
            outcome.proposed = outcome.accepted = len(ids) - 1
            if opened.logprobs >= 0:
                top = [types_pb2.TopLogprob(id=i, logprob=-1.0 - i) for i in range(opened.logprobs)]
                outcome.logprobs.extend(types_pb2.TokenLogprob(id=i, logprob=-0.5, rank=1, top=top) for i in ids)
            length, output = length + len(ids), output + len(ids)
            stops = [EOS, *opened.limits.stop_ids] if not opened.limits.ignore_eos else opened.limits.stop_ids
            if ids[-1] in stops:
                outcome.finish, outcome.stop_id = types_pb2.FINISH_REASON_STOP, ids[-1]
            elif output >= opened.limits.max_tokens:
                outcome.finish = types_pb2.FINISH_REASON_LENGTH
            if outcome.finish:
                self.live.pop(opened.sequence, None)
                self.ended.append(opened.sequence)
            self.rounds += 1
            outbox.put_nowait(self.response(outcomes=[outcome]))
            if outcome.finish:
                return
            await asyncio.sleep(0)


@dataclass(eq=False)
class FakeDraft(Fake, draft_pb2_grpc.DraftServiceServicer):
    """Hears everything and says what the test makes it say."""

    response: Any = draft_pb2.DraftServiceServeResponse

    def register(self, server: Any) -> None:
        draft_pb2_grpc.add_DraftServiceServicer_to_server(self, server)
