"""Questions to running services, and waiting for the answers."""

import time
from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.ssd.v1 import admin_pb2, admin_pb2_grpc, draft_pb2, draft_pb2_grpc, target_pb2, target_pb2_grpc, types_pb2
from ssd.rpc.options import CHANNEL_OPTIONS
from tests.system.services import System

WITHIN_S = 30.0
SERVING = health_pb2.HealthCheckResponse.SERVING


def eventually(condition: Callable[[], bool], what: str, within_s: float = WITHIN_S) -> None:
    """Return as soon as the condition holds; AssertionError if it does not in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.02)


def load_of(system: System, name: str) -> types_pb2.EngineLoad:
    """Occupancy of the target or the draft, asked directly."""
    with grpc.insecure_channel(system.specs[name].address, options=CHANNEL_OPTIONS) as channel:
        if name == "target":
            target = target_pb2_grpc.TargetServiceStub(channel)
            return target.GetStatus(target_pb2.TargetServiceGetStatusRequest(), timeout=10).load
        draft = draft_pb2_grpc.DraftServiceStub(channel)
        return draft.GetStatus(draft_pb2.DraftServiceGetStatusRequest(), timeout=10).load


def held(system: System) -> int:
    """KV blocks that sequences hold on target and draft."""
    return load_of(system, "target").kv_blocks_used + load_of(system, "draft").kv_blocks_used


def is_serving(system: System, service: str) -> bool:
    """What the router's health says of a name."""
    with grpc.insecure_channel(system.address, options=CHANNEL_OPTIONS) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        return health_pb2_grpc.HealthStub(channel).Check(request, timeout=10).status == SERVING


def server_info(system: System) -> admin_pb2.GetServerInfoResponse:
    """Peers as the router sees them."""
    with grpc.insecure_channel(system.address, options=CHANNEL_OPTIONS) as channel:
        return admin_pb2_grpc.AdminServiceStub(channel).GetServerInfo(admin_pb2.GetServerInfoRequest(), timeout=10)


def router_load(system: System) -> admin_pb2.GetLoadResponse:
    """How busy the router is."""
    with grpc.insecure_channel(system.address, options=CHANNEL_OPTIONS) as channel:
        return admin_pb2_grpc.AdminServiceStub(channel).GetLoad(admin_pb2.GetLoadRequest(), timeout=10)


def inspect(system: System, request_id: str) -> admin_pb2.InspectSpeculationResponse:
    """The speculation state of a live request."""
    request = admin_pb2.InspectSpeculationRequest(request_id=request_id)
    with grpc.insecure_channel(system.address, options=CHANNEL_OPTIONS) as channel:
        return admin_pb2_grpc.AdminServiceStub(channel).InspectSpeculation(request, timeout=10)
