"""The connection to one target or draft: kept up for the life of the router, whatever happens at the other end.

A peer is lost when its stream breaks, when it says nothing (not even a pong) for peer_timeout_s, or when it does not
read. A long step is no silence: services answer pings beside it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import structlog

from protos.ssd.v1 import admin_pb2, draft_pb2, draft_pb2_grpc, target_pb2, target_pb2_grpc, types_pb2
from ssd.config import RouterConfig
from ssd.rpc.options import CHANNEL_OPTIONS

RETRY_FIRST_S = 0.1
RETRY_MOST_S = 1.0
# A peer with another tokenizer stays unused; only a new process at its address can change that.
RETRY_INCOMPATIBLE_S = 5.0
OUTBOX_MESSAGES = 4096
_CANCELLED = "it cancelled the stream"
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs

log = structlog.get_logger()


@dataclass(frozen=True)
class Role:
    """What targets and drafts differ in, seen from the connection."""

    name: str
    stub: Callable[[grpc.aio.Channel], Any]
    request: type[Any]  # the envelope; has the fields `hello` and `ping`


TARGET = Role("target", target_pb2_grpc.TargetServiceStub, target_pb2.TargetServiceServeRequest)
DRAFT = Role("draft", draft_pb2_grpc.DraftServiceStub, draft_pb2.DraftServiceServeRequest)


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection to one peer: the coordinator's key for it. Never used again after its loss."""

    role: str
    address: str
    number: int


class Listener(Protocol):
    """Who hears of a peer. Called on the event loop; must not block."""

    def on_welcome(self, peer: Peer, connection: Connection, welcome: types_pb2.Welcome) -> str | None:
        """A connection is up. A reason refuses the peer as INCOMPATIBLE."""

    def on_message(self, connection: Connection, message: Any) -> None: ...

    def on_lost(self, peer: Peer, connection: Connection | None) -> None:
        """A connection broke, or (None) could not be made."""


class PeerLost(Exception):
    """The connection is of no use any more; the message says why."""


class Peer:
    """One address; `state`, `detail`, `welcome`, `load` and `rtt_ms` are for reading."""

    def __init__(self, address: str, role: Role, config: RouterConfig, epoch: int, listener: Listener) -> None:
        self.address = address
        self.role = role
        self.state: admin_pb2.PeerState = admin_pb2.PEER_STATE_CONNECTING
        self.detail = "not tried yet"
        self.attempts = 0
        self.welcome: types_pb2.Welcome | None = None
        self.load = types_pb2.EngineLoad()
        self.rtt_ms = 0.0
        self._config = config
        self._epoch = epoch
        self._listener = listener
        self._silent_beats = 0
        self._pings: dict[int, float] = {}
        self._outbox: asyncio.Queue[Any] = asyncio.Queue(OUTBOX_MESSAGES)
        self._overflowed = asyncio.Event()

    @property
    def ready(self) -> bool:
        return self.state == admin_pb2.PEER_STATE_READY

    def send(self, message: Any) -> None:
        """Send a message on the present connection; a peer that has left thousands unread is given up."""
        try:
            self._outbox.put_nowait(message)
        except asyncio.QueueFull:
            self._overflowed.set()

    async def run(self) -> None:
        """Connect, serve, and connect again, until cancelled."""
        delay = RETRY_FIRST_S
        async with grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS) as channel:
            while True:
                was_ready = await self._attempt(channel)
                delay = RETRY_FIRST_S if was_ready else min(2 * delay, RETRY_MOST_S)
                incompatible = self.state == admin_pb2.PEER_STATE_INCOMPATIBLE
                await asyncio.sleep(RETRY_INCOMPATIBLE_S if incompatible else delay)

    async def _attempt(self, channel: grpc.aio.Channel) -> bool:
        """One connection from beginning to end; whether it was ever ready.

        It runs as a task of its own: grpc.aio raises CancelledError also when the *peer* ended the call with that
        status, which must not be taken for a cancellation of the router's.
        """
        self.attempts += 1
        connection = Connection(self.role.name, self.address, self.attempts)
        task = asyncio.create_task(self._serve(channel, connection))
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        was_ready = self.ready
        self.load = types_pb2.EngineLoad()
        if self.state != admin_pb2.PEER_STATE_INCOMPATIBLE:
            self.state = admin_pb2.PEER_STATE_LOST if was_ready else self.state
            self.detail = _reason(task)
        (log.warning if was_ready else log.debug)(
            "peer lost", role=self.role.name, address=self.address, reason=self.detail
        )
        self._listener.on_lost(self, connection if was_ready else None)
        return was_ready

    async def _serve(self, channel: grpc.aio.Channel, connection: Connection) -> None:
        call = self.role.stub(channel).Serve()
        try:
            welcome = await self._handshake(call)
            refusal = self._listener.on_welcome(self, connection, welcome)
            if refusal is not None:
                self.state, self.detail = admin_pb2.PEER_STATE_INCOMPATIBLE, refusal
                return
            self.state, self.detail = admin_pb2.PEER_STATE_READY, ""
            log.info("peer ready", role=self.role.name, address=self.address, epoch=f"{welcome.epoch:x}")
            await _first_to_end(self._read(call, connection), self._write(call), self._beat(), self._overflow())
        finally:
            call.cancel()

    async def _handshake(self, call: Any) -> types_pb2.Welcome:
        self._outbox, self._overflowed = asyncio.Queue(OUTBOX_MESSAGES), asyncio.Event()
        self._silent_beats = 0
        self._pings.clear()
        try:
            async with asyncio.timeout(self._config.peer_timeout_s):
                await call.write(self.role.request(hello=types_pb2.Hello(epoch=self._epoch, caller="router")))
                first = await call.read()
        except TimeoutError:
            raise PeerLost(f"no welcome within {self._config.peer_timeout_s:g} s") from None
        if first is _EOF or not first.HasField("welcome"):
            raise PeerLost("its first message was no welcome")
        self.welcome = first.welcome
        return first.welcome

    async def _read(self, call: Any, connection: Connection) -> None:
        while (message := await call.read()) is not _EOF:
            self._silent_beats = 0
            if message.HasField("pong"):
                self._take_pong(message.pong)
            self._listener.on_message(connection, message)
        raise PeerLost("it ended the stream")

    async def _write(self, call: Any) -> None:
        while True:
            await call.write(await self._outbox.get())

    async def _beat(self) -> None:
        # Beats are counted, not seconds: when this process itself was held up, the peer's answers wait to be read.
        most = max(1, round(self._config.peer_timeout_s / self._config.heartbeat_s))
        nonce = 0
        while self._silent_beats <= most:
            nonce += 1
            self._pings[nonce] = time.monotonic()
            self._silent_beats += 1
            self.send(self.role.request(ping=types_pb2.Ping(nonce=nonce)))
            await asyncio.sleep(self._config.heartbeat_s)
        raise PeerLost(f"silent for {self._config.peer_timeout_s:g} s")

    async def _overflow(self) -> None:
        await self._overflowed.wait()
        raise PeerLost("it does not read its stream")

    def _take_pong(self, pong: types_pb2.Pong) -> None:
        sent = self._pings.pop(pong.nonce, None)
        if sent is not None:
            self.rtt_ms = (time.monotonic() - sent) * 1000
        self._pings = {nonce: at for nonce, at in self._pings.items() if nonce > pong.nonce}
        self.load = pong.load


async def _first_to_end(*coroutines: Any) -> None:
    """Run all until one ends; the others are cancelled and its exception is raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    ends = [result for result in results if isinstance(result, Exception)]
    raise next(iter(ends), PeerLost(_CANCELLED))


def _reason(task: asyncio.Task[None]) -> str:
    """Why a connection ended, for people. Raises what is no matter of the connection."""
    if task.cancelled():
        return _CANCELLED
    error = task.exception()
    if error is None or isinstance(error, PeerLost):
        return str(error or "")
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    raise error
