"""The AdminService: looking inside a running router."""

from __future__ import annotations

import time
from collections.abc import Iterable
from importlib import metadata

import grpc

from protos.ssd.v1 import admin_pb2, admin_pb2_grpc, types_pb2
from router.calls import statuses
from router.gate import Gate
from router.peer import Peer
from router.planes import Pair, address_of
from ssd.proto_convert import outcome_table_message, proposal_message
from ssd.rpc.status import ApiError
from ssd.tensor_plane.choice import kind_number

_SUMMED = ("running", "waiting", "kv_blocks_used", "kv_blocks_total", "steps", "stale_drops", "preemptions")


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Answers from what the hub knows; asks no peer. UNAVAILABLE while the router loads."""

    def __init__(self, gate: Gate, epoch: int) -> None:
        self._gate = gate
        self._epoch = epoch
        self._started = time.monotonic()

    async def GetServerInfo(  # noqa: N802 - gRPC's name
        self, request: admin_pb2.GetServerInfoRequest, context: grpc.aio.ServicerContext
    ) -> admin_pb2.GetServerInfoResponse:
        response = admin_pb2.GetServerInfoResponse(version=_version(), epoch=self._epoch)
        response.uptime_s = time.monotonic() - self._started
        async with statuses(context):
            hub = self._gate.core.hub
            response.targets.extend(_message(peer) for peer in hub.targets)
            response.drafts.extend(_message(peer) for peer in hub.drafts)
            response.planes.extend(_plane(pair) for pair in hub.coordinator.planes.pairs)
        return response

    async def GetLoad(  # noqa: N802
        self, request: admin_pb2.GetLoadRequest, context: grpc.aio.ServicerContext
    ) -> admin_pb2.GetLoadResponse:
        response = admin_pb2.GetLoadResponse()
        async with statuses(context):
            core = self._gate.core
            coordinator = core.hub.coordinator
            tally = coordinator.tally
            response.waiting = len(coordinator.waiting())
            response.running = core.hub.live - response.waiting
            response.prompt_tokens = core.admission.prompt_tokens
            response.target.CopyFrom(_sum(core.hub.targets))
            response.draft.CopyFrom(_sum(core.hub.drafts))
            response.acceptance = _ratio(tally.sum("accepted"), tally.sum("proposed"))
            response.hit_rate = _ratio(tally.sum("hits"), tally.sum("hits") + tally.sum("misses"))
            response.stale_drops = sum(coordinator.stale_by_reason.values())
            response.cached_tables = coordinator.cached_tables
            response.degraded = not core.hub.draft_ready
        return response

    async def InspectSpeculation(  # noqa: N802
        self, request: admin_pb2.InspectSpeculationRequest, context: grpc.aio.ServicerContext
    ) -> admin_pb2.InspectSpeculationResponse:
        response = admin_pb2.InspectSpeculationResponse()
        async with statuses(context):
            hub = self._gate.core.hub
            sequence = hub.sequence_of(request.request_id)
            live = hub.coordinator.of(sequence) if sequence is not None else None
            if live is None:
                if not request.request_id:
                    raise ApiError(grpc.StatusCode.INVALID_ARGUMENT, "request_id: must be given")
                raise ApiError(grpc.StatusCode.NOT_FOUND, f"request_id: {request.request_id!r} is not live")
            held = hub.coordinator.snapshot(live.sequence)
            response.sequence = live.sequence
            response.committed_len = live.length
            response.mode = live.plan.mode
            response.drafting = live.draftable
            response.tables.extend(outcome_table_message(live.sequence, table) for table in held.tables)
            response.proposals.extend(proposal_message(live.sequence, made) for made in held.proposals)
            response.rounds = live.totals.rounds
            response.hits = live.totals.hits
            response.misses = live.totals.misses
            governing = hub.coordinator.governing
            if (decision := governing.decision(live.sequence)) is not None:
                response.decision.CopyFrom(decision)
            response.statistics.CopyFrom(governing.statistics(live))
        return response


def _sum(peers: Iterable[Peer]) -> types_pb2.EngineLoad:
    """Loads of the peers that are connected, as of their last heartbeats."""
    total = types_pb2.EngineLoad()
    for peer in peers:
        if peer.ready:
            total.block_size = peer.load.block_size
            for name in _SUMMED:
                setattr(total, name, getattr(total, name) + getattr(peer.load, name))
    return total


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _version() -> str:
    try:
        return metadata.version("ssd-serve")
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return ""


def _plane(pair: Pair) -> admin_pb2.Plane:
    """A tensor plane as GetServerInfo shows it."""
    return admin_pb2.Plane(
        target=address_of(pair.target),
        draft=address_of(pair.draft),
        epoch=pair.epoch,
        kind=kind_number(pair.kind),
        state=pair.state,
        reason=pair.reason,
        latency_us=pair.latency_us,
        bandwidth=pair.bandwidth,
        fallbacks=pair.fallbacks,
    )


def _message(peer: Peer) -> admin_pb2.Peer:
    """A peer as GetServerInfo shows it."""
    model = peer.welcome.model if peer.welcome is not None else None
    epoch = peer.welcome.epoch if peer.welcome is not None else 0
    return admin_pb2.Peer(
        address=peer.address,
        state=peer.state,
        detail=peer.detail,
        epoch=epoch,
        model=model,
        load=peer.load,
        rtt_ms=peer.rtt_ms,
    )
