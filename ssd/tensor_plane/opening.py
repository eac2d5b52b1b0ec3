"""From an order of the router to a channel: one function for each end, with what each kind needs."""

from __future__ import annotations

import torch
from torch.distributed import Store

from protos.ssd.v1 import types_pb2
from ssd.tensor_plane.channel import Broken, Channel
from ssd.tensor_plane.choice import Kind, kind_of
from ssd.tensor_plane.cuda_ipc import open_ring, share_ring
from ssd.tensor_plane.pair_channel import PairChannel
from ssd.tensor_plane.process_group import DRAFT_RANK, TARGET_RANK, Carrier, GlooCarrier, Link, NcclCarrier
from ssd.tensor_plane.rendezvous import Rendezvous, connect, route_to


def open_target_end(order: types_pb2.PlaneOrder, rendezvous: Rendezvous, device: torch.device) -> Channel:
    """Wait for the draft and open; Broken where it does not come in time, or the kind is impossible here."""
    _use(device)
    kind = kind_of(order.kind)
    store = rendezvous.store(order.name, order.limit_s)
    ring = share_ring(store, device) if kind is Kind.CUDA_IPC else None
    link = Link(store, TARGET_RANK, rendezvous.device_host, order.limit_s)
    carrier = ring or _carrier(kind, link, store, TARGET_RANK, device, order.limit_s)
    return PairChannel(link, carrier, device)


def open_draft_end(order: types_pb2.PlaneOrder, device: torch.device) -> Channel:
    """Go to the target and open; Broken as above."""
    _use(device)
    kind = kind_of(order.kind)
    store = connect(order.rendezvous, order.name, order.limit_s)
    link = Link(store, DRAFT_RANK, route_to(order.rendezvous), order.limit_s)
    if kind is Kind.CUDA_IPC:
        return PairChannel(link, open_ring(store, device, order.limit_s), device)
    return PairChannel(link, _carrier(kind, link, store, DRAFT_RANK, device, order.limit_s), device)


def _carrier(kind: Kind | None, link: Link, store: Store, rank: int, device: torch.device, limit_s: float) -> Carrier:
    if kind is Kind.GLOO:
        return GlooCarrier(link)
    if kind is Kind.NCCL and device.type == "cuda":
        return NcclCarrier(store, rank, device, limit_s)
    raise Broken(f"{kind.value if kind is not None else 'an unknown kind'} is impossible on {device}")


def _use(device: torch.device) -> None:
    """Have this thread work on `device`, and there on a stream of its own: the default one is the models', so a copy on
    it would wait for the step that runs."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.set_stream(torch.cuda.Stream(device))
