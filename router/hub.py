"""All peers, all live requests, and the coordinator between them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import grpc
import structlog
from google.rpc import code_pb2

from protos.ssd.v1 import types_pb2
from router.coordinator import Coordinator, Emitted, Event
from router.delivery import Delivery
from router.governing import Governing
from router.live import Failure
from router.peer import DRAFT, TARGET, Connection, Peer
from router.plan import Plan
from router.session import Session
from router.validation import Limits
from ssd.config import RouterConfig
from ssd.rpc.status import ApiError, exhausted, from_code, invalid, unavailable
from ssd.telemetry.metrics import Metrics, RequestTimes
from ssd.telemetry.trace import NO_TRACER, Tracer
from ssd.tensor_plane.choice import ability_of
from ssd.tokenizer import Tokenizer

# A target names the fields of its own messages; clients know them by these paths.
GOVERN_S = 0.001
"""Decisions of mode AUTO that may hold up the event loop at a time; a single one may take longer."""
_PUBLIC_FIELDS = {"max_tokens": "stop.max_tokens", "min_tokens": "stop.min_tokens", "stop_ids": "stop.token_ids"}

log = structlog.get_logger()


class Hub:
    """Implements router.peer.Listener."""

    def __init__(
        self,
        config: RouterConfig,
        tokenizer: Tokenizer,
        epoch: int,
        metrics: Metrics | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self.metrics = metrics or Metrics()
        self._tracer = tracer
        self._hop_began = 0.0  # the first message since the last flush came then; 0 = none, or no trace
        self.coordinator = Coordinator(
            governing=Governing(tracer=tracer),
            tensor_plane=config.tensor_plane,
            plane_limit_s=config.plane_limit_s,
            name=f"{epoch:x}",
        )
        self.targets = [Peer(address, TARGET, config, epoch, self) for address in config.targets]
        self.drafts = [Peer(address, DRAFT, config, epoch, self) for address in config.drafts]
        self._limits: Limits | None = None  # of the targets connected last; None before the first one
        self._config = config
        self._tokenizer = tokenizer
        self._changed = asyncio.Event()
        self._connections: dict[Connection, Peer] = {}
        self._live: dict[str, Delivery] = {}  # by request id
        self._by_sequence: dict[int, Delivery] = {}
        self._give_up: dict[int, asyncio.TimerHandle] = {}  # sequences that wait for a target
        self._numbers = itertools.count(1)
        self._flushing = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self) -> None:
        """Keep all peers connected until cancelled."""
        async with asyncio.TaskGroup() as group:
            for peer in (*self.targets, *self.drafts):
                group.create_task(peer.run(), name=f"{peer.role.name} {peer.address}")

    async def changed(self) -> None:
        """Wait until a peer came, went or was tried."""
        await self._changed.wait()
        self._changed.clear()

    @property
    def target_ready(self) -> bool:
        return any(peer.ready for peer in self.targets)

    @property
    def draft_ready(self) -> bool:
        return any(peer.ready for peer in self.drafts)

    @property
    def limits(self) -> Limits | None:
        """What a request may ask for now; None before the first target has answered."""
        if self._limits is None:
            return None
        drafts = [peer.welcome.max_branches for peer in self.drafts if peer.ready and peer.welcome is not None]
        return replace(self._limits, max_branches=min([self._config.max_branches, *filter(None, drafts)]))

    @property
    def target_model(self) -> types_pb2.ModelInfo | None:
        """What the targets serve; None before the first one has answered."""
        known = sorted((peer for peer in self.targets if peer.welcome is not None), key=lambda peer: not peer.ready)
        return next((peer.welcome.model for peer in known if peer.welcome is not None), None)

    @property
    def draft_model(self) -> types_pb2.ModelInfo | None:
        """What a connected draft drafts with."""
        return next((peer.welcome.model for peer in self.drafts if peer.ready and peer.welcome is not None), None)

    # Requests

    @contextmanager
    def generation(
        self, request_id: str, plan: Plan, session: Session, times: RequestTimes | None = None
    ) -> Iterator[Delivery]:
        """A live request. On leaving, however that happens, its sequence is closed on target and draft, once.

        times: where its delays are noted; None = nowhere.
        Raises ApiError (ALREADY_EXISTS) if the id is live.
        """
        if request_id in self._live:
            raise ApiError(grpc.StatusCode.ALREADY_EXISTS, f"request_id: {request_id!r} is live already")
        sequence = next(self._numbers)
        config = self._config
        delivery = Delivery(
            sequence, session, config.stream_buffer, config.stream_stall_s, lambda: self._close(sequence), times
        )
        self._live[request_id] = self._by_sequence[sequence] = delivery
        self._idle.clear()
        try:
            self.coordinator.open(sequence, plan)
            self._await_targets()
            if sequence not in self._give_up:
                delivery.placed()
            self._flush_soon()
            yield delivery
        finally:
            self._close(sequence)
            delivery.release()
            del self._live[request_id]
            if not self._live:
                self._idle.set()

    def end(self, request_id: str, reason: types_pb2.FinishReason) -> bool:
        """End a request with the text so far; False if it is not live."""
        delivery = self._live.get(request_id)
        if delivery is None or delivery.over:
            return False
        delivery.end(reason)
        self._close(delivery.sequence)
        return True

    def fail_all(self, error: ApiError) -> None:
        """End every live request with a status."""
        for delivery in list(self._by_sequence.values()):
            delivery.fail(error)
            self._close(delivery.sequence)

    def sequence_of(self, request_id: str) -> int | None:
        """The sequence of a live request."""
        delivery = self._live.get(request_id)
        return None if delivery is None else delivery.sequence

    async def idle(self) -> None:
        """Wait until no request is live."""
        await self._idle.wait()

    @property
    def live(self) -> int:
        """Requests whose call has not ended."""
        return len(self._live)

    # Listener

    def on_welcome(self, peer: Peer, connection: Connection, welcome: types_pb2.Welcome) -> str | None:
        self._changed.set()
        refusal = self._refusal(peer, welcome)
        if refusal is not None:
            if refusal != peer.detail:  # once, not at each attempt
                log.error("peer incompatible", role=peer.role.name, address=peer.address, reason=refusal)
            return refusal
        self._connections[connection] = peer
        if peer.role is TARGET:
            self._take_limits(welcome)
            self.coordinator.target_ready(connection, welcome.max_k, ability_of(welcome.plane))
            self._await_targets()
        else:
            self.coordinator.draft_ready(connection, welcome.max_k, ability_of(welcome.plane))
        self._flush_soon()
        return None

    def on_message(self, connection: Connection, message: Any) -> None:
        begun = self._tracer.now()
        self._hop_began = self._hop_began or begun
        if message.HasField("pong"):
            self.coordinator.round_trip(connection, self._connections[connection].rtt_ms / 1000)
            self.coordinator.planes.tick(asyncio.get_running_loop().time())
        if message.HasField("timing"):
            histogram = self.metrics.draft if connection.role == DRAFT.name else self.metrics.verify
            histogram.labels("yes" if message.timing.prefill else "no").observe(message.timing.step_ms / 1000)
        if connection.role == DRAFT.name:
            self.coordinator.on_draft(connection, message)
        else:
            for event in self.coordinator.on_target(connection, message):
                self._deliver(event)
        self._tracer.span("router", f"from {connection.role}", begun, self._tracer.now())
        self._flush_soon()

    def on_lost(self, peer: Peer, connection: Connection | None) -> None:
        self._changed.set()
        if connection is None:
            return
        del self._connections[connection]
        if peer.role is TARGET:
            self.coordinator.target_lost(connection)
            self._await_targets()
        else:
            self.coordinator.draft_lost(connection)
        self._flush_soon()

    # Inside

    def _deliver(self, event: Event) -> None:
        delivery = self._by_sequence.get(event.sequence)
        if delivery is None:
            return
        if isinstance(event, Emitted):
            if delivery.feed(event.outcome, event.totals):
                self._close(event.sequence)
        else:
            delivery.fail(_as_error(event.failure))
            self._close(event.sequence)

    def _close(self, sequence: int) -> None:
        self._by_sequence.pop(sequence, None)
        if (timer := self._give_up.pop(sequence, None)) is not None:
            timer.cancel()
        if self.coordinator.close(sequence):
            self._flush_soon()

    def _flush_soon(self) -> None:
        """Everything that happens in one turn of the event loop goes out in one message for each peer."""
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        for connection, message in self.coordinator.flush().items():
            peer = self._connections[connection]  # type: ignore[index]  # our keys are connections
            peer.send(message)
            if self._hop_began:
                self._tracer.span("hops", f"to {peer.role.name}", self._hop_began, self._tracer.now())
        self._hop_began = 0.0
        # In the next turn of the loop: what was just sent is only on its way when this one is over.
        asyncio.get_running_loop().call_soon(self._govern)

    def _govern(self) -> None:
        """Decide for a moment, and go on in a later turn: messages come and go meanwhile."""
        until = time.monotonic() + GOVERN_S
        if self.coordinator.govern(lambda: time.monotonic() >= until):
            self._flush_soon()

    def _await_targets(self) -> None:
        """Start and stop the clocks of sequences without a target."""
        waiting = set(self.coordinator.waiting())
        if not waiting and not self._give_up:
            return
        for sequence in self._give_up.keys() - waiting:
            self._give_up.pop(sequence).cancel()
            self._by_sequence[sequence].placed()
        later = asyncio.get_running_loop().call_later
        for sequence in waiting - self._give_up.keys():
            self._give_up[sequence] = later(self._config.target_wait_s, self._gave_up, sequence)

    def _gave_up(self, sequence: int) -> None:
        delivery = self._by_sequence.get(sequence)
        if delivery is not None:
            details = "; ".join(f"{peer.address}: {peer.detail}" for peer in self.targets)
            message = f"no target for {self._config.target_wait_s:g} s ({details})"
            delivery.fail(unavailable("NO_TARGET", message))
        self._close(sequence)

    def _refusal(self, peer: Peer, welcome: types_pb2.Welcome) -> str | None:
        model = welcome.model
        if model.tokenizer_digest != self._tokenizer.digest:
            theirs = f"{model.tokenizer_source or 'unknown'} ({model.tokenizer_digest[:16] or 'no digest'})"
            return f"{peer.role.name} {peer.address} has another tokenizer: {theirs}; the router has {self._tokenizer}"
        others = [other for other in self.targets if other.ready and other is not peer] if peer.role is TARGET else []
        for other in others:
            if other.welcome is not None and _weights(other.welcome.model) != _weights(model):
                what = f"{model.source} in {model.dtype}"
                return f"target {peer.address} serves another model or dtype than {other.address}: {what}"
        return None

    def _take_limits(self, newcomer: types_pb2.Welcome) -> None:
        welcomes = [newcomer, *(peer.welcome for peer in self.targets if peer.ready and peer.welcome is not None)]
        self._limits = Limits(
            vocab_size=min(welcome.model.vocab_size for welcome in welcomes),
            context=min(_context(welcome) for welcome in welcomes),
            max_k=min(welcome.max_k for welcome in welcomes),
        )


def _weights(model: types_pb2.ModelInfo) -> tuple[str, int, int, str, bool]:
    """What must be equal for one target to go on with another's stream: the arithmetic as well."""
    return model.architecture, model.parameters, model.vocab_size, model.dtype, model.deterministic


def _context(welcome: types_pb2.Welcome) -> int:
    """Longest sequence: the model's own limit, or all of the KV room where that is less."""
    return min(welcome.model.context_length, welcome.max_tokens or welcome.model.context_length)


def _as_error(failure: Failure) -> ApiError:
    if failure.status == code_pb2.INVALID_ARGUMENT:
        field, separator, message = failure.message.partition(": ")
        if separator and " " not in field:
            return invalid(_PUBLIC_FIELDS.get(field, field), message)
    if failure.status == code_pb2.RESOURCE_EXHAUSTED:
        return exhausted(f"target: {failure.message}")
    if failure.status == code_pb2.UNAVAILABLE:
        return unavailable("TARGET_REFUSED", failure.message)
    return from_code(failure.status, f"target: {failure.message}")
