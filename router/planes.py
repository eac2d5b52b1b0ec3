"""Tensor planes between drafts and targets: which kind each pair uses, and what is done when one breaks. Sans-IO.

    INLINE ──order to the target──▶ OPENING ──it listens: order to the draft──▶ OPENING ──both report──▶ OPEN
       ▲                               │                                                                  │
       └────── epoch + 1, again after a pause ◀──────────── either end reports BROKEN, or nothing ◀───────┘

Laws are inline until both ends are open. A pair is one connection to a target and one to a draft, so a peer that comes
back begins anew.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from protos.ssd.v1 import types_pb2
from ssd.speculation.law import LawRef, Laws
from ssd.tensor_plane.choice import AUTO, Ability, Kind, choose, kind_number

PeerKey = Hashable

OPENING = types_pb2.PLANE_STATE_OPENING
OPEN = types_pb2.PLANE_STATE_OPEN
BROKEN = types_pb2.PLANE_STATE_BROKEN

RETRY_FIRST_S = 1.0
RETRY_MOST_S = 60.0
# Both ends keep limits of their own; one that says nothing in so many of them never will.
_SILENT_LIMITS = 6.0

log = structlog.get_logger()


class Boxes(Protocol):
    """Where orders go; see Placement."""

    def order_plane(self, key: PeerKey, order: types_pb2.PlaneOrder) -> None: ...

    def close_plane(self, key: PeerKey, plane: int) -> None: ...


@dataclass(slots=True, eq=False)
class Pair:
    """A draft and a target; for reading.

    epoch       grows with every change; the number of the plane while there is one
    wanted      the kind that is possible; INLINE = none is
    kind        the kind in use
    reason      why it is INLINE
    """

    target: PeerKey
    draft: PeerKey
    number: int  # the draft's name for the target
    wanted: Kind
    epoch: int
    kind: Kind = Kind.INLINE
    state: types_pb2.PlaneState = OPEN
    reason: str = ""
    latency_us: float = 0.0
    bandwidth: float = 0.0
    fallbacks: int = 0
    open_ends: set[PeerKey] = field(default_factory=set)
    failures: int = 0  # since it was open last
    since: float | None = None  # the clock when it was first seen in this epoch
    ordered: bool = False  # the draft too


class Planes:
    """Pairs of connected peers."""

    def __init__(self, boxes: Boxes, wanted: str = AUTO, limit_s: float = 2.0, name: str = "") -> None:
        """wanted: auto or a kind. limit_s: longest that anything on a plane may take. name: unique among routers."""
        self._boxes = boxes
        self._wanted = wanted
        self._limit_s = limit_s
        self._name = name
        self._targets: dict[PeerKey, tuple[int, Ability]] = {}
        self._drafts: dict[PeerKey, Ability] = {}
        self._pairs: dict[tuple[PeerKey, PeerKey], Pair] = {}
        self._by_plane: dict[int, Pair] = {}
        self._epochs = itertools.count(1)
        self._told: set[tuple[str, str, str]] = set()  # fallbacks that were logged

    @property
    def pairs(self) -> Iterable[Pair]:
        """All pairs of a connected target and a connected draft."""
        return self._pairs.values()

    def target_ready(self, key: PeerKey, number: int, ability: Ability) -> None:
        """A new connection to a target, which drafts know by `number`."""
        self._targets[key] = number, ability
        for draft in self._drafts:
            self._pair(key, draft)

    def draft_ready(self, key: PeerKey, ability: Ability) -> None:
        """A new connection to a draft."""
        self._drafts[key] = ability
        for target in self._targets:
            self._pair(target, key)

    def lost(self, key: PeerKey) -> None:
        """A connection is gone, and its end of every plane with it."""
        self._targets.pop(key, None)
        self._drafts.pop(key, None)
        for pair in [pair for pair in self.pairs if key in (pair.target, pair.draft)]:
            del self._pairs[pair.target, pair.draft]
            self._by_plane.pop(pair.epoch, None)
            if pair.kind is not Kind.INLINE:
                other = pair.draft if key == pair.target else pair.target
                self._boxes.close_plane(other, pair.epoch)

    def report(self, key: PeerKey, report: types_pb2.PlaneReport) -> None:
        """One end says how it is; late news of an earlier epoch is no news."""
        pair = self._by_plane.get(report.plane)
        if pair is None or key not in (pair.target, pair.draft):
            return
        if report.state == BROKEN:
            self._fall_back(pair, report.reason or "no reason given")
        elif report.state == OPENING and key == pair.target and not pair.ordered:
            pair.ordered = True
            order = self._order(pair)
            order.rendezvous, order.target = _reachable(report.rendezvous, key), pair.number
            self._boxes.order_plane(pair.draft, order)
        elif report.state == OPEN:
            pair.open_ends.add(key)
            pair.latency_us = report.latency_us or pair.latency_us
            pair.bandwidth = report.bandwidth or pair.bandwidth
            if len(pair.open_ends) == 2 and pair.state == OPENING:
                pair.state, pair.failures = OPEN, 0
                log.info("tensor plane open", **_names(pair), plane_kind=pair.kind.value, epoch=pair.epoch)

    def tick(self, now: float) -> None:
        """Let time pass, in monotonic seconds: pauses end, and what never came is given up."""
        for pair in list(self.pairs):
            if pair.since is None:
                pair.since = now
            waited = now - pair.since
            if pair.kind is not Kind.INLINE and pair.state == OPENING and waited > _SILENT_LIMITS * self._limit_s:
                self._fall_back(pair, f"not open within {_SILENT_LIMITS * self._limit_s:g} s")
            elif pair.kind is Kind.INLINE and pair.wanted is not Kind.INLINE and waited >= _pause_s(pair.failures):
                self._open(pair)

    def carries(self, laws: Laws, target: PeerKey | None) -> bool:
        """Whether a target can look at these laws: those that are elsewhere came over a plane to it that still is."""
        return all(self._leads_to(law.plane, target) for law in laws if isinstance(law, LawRef))

    def carries_table(self, table: types_pb2.OutcomeTable, target: PeerKey | None) -> bool:
        """The same for all of a table."""
        planes = {span.plane for branch in table.branches for span in branch.law_spans if span.plane}
        return all(self._leads_to(plane, target) for plane in planes)

    def _leads_to(self, plane: int, target: PeerKey | None) -> bool:
        pair = self._by_plane.get(plane)
        return pair is not None and pair.target == target

    def _pair(self, target: PeerKey, draft: PeerKey) -> None:
        number, ability = self._targets[target]
        choice = choose(ability, self._drafts[draft], self._wanted)
        pair = Pair(target, draft, number, choice.kind, next(self._epochs), reason=choice.reason)
        self._pairs[target, draft] = pair
        if choice.kind is not Kind.INLINE:
            self._open(pair)
        else:
            self._tell(pair, expected=self._wanted in (AUTO, Kind.INLINE.value))

    def _open(self, pair: Pair) -> None:
        pair.epoch, pair.since = next(self._epochs), None
        pair.kind, pair.state, pair.reason = pair.wanted, OPENING, ""
        pair.latency_us = pair.bandwidth = 0.0
        pair.open_ends.clear()
        pair.ordered = False
        self._by_plane[pair.epoch] = pair
        self._boxes.order_plane(pair.target, self._order(pair))

    def _order(self, pair: Pair) -> types_pb2.PlaneOrder:
        return types_pb2.PlaneOrder(
            plane=pair.epoch,
            kind=kind_number(pair.kind),
            name=f"ssd/{self._name}/{pair.epoch}",
            limit_s=self._limit_s,
        )

    def _fall_back(self, pair: Pair, reason: str) -> None:
        """Inline from now on, in a new epoch."""
        del self._by_plane[pair.epoch]
        for key in (pair.target, pair.draft):
            self._boxes.close_plane(key, pair.epoch)
        pair.reason = f"{pair.kind.value}: {reason}"
        pair.epoch, pair.since = next(self._epochs), None
        pair.kind, pair.state = Kind.INLINE, OPEN
        pair.latency_us = pair.bandwidth = 0.0
        pair.failures += 1
        pair.fallbacks += 1
        self._tell(pair)

    def _tell(self, pair: Pair, *, expected: bool = False) -> None:
        """Say once for each pair of addresses and reason why laws go inline."""
        names = _names(pair)
        key = names["target"], names["draft"], pair.reason
        if expected or key in self._told:
            log.debug("laws go inline", **names, reason=pair.reason)
            return
        self._told.add(key)
        log.warning("tensor plane fell back to inline", **names, reason=pair.reason, epoch=pair.epoch)


def address_of(key: PeerKey) -> str:
    """A peer's address, for people."""
    return str(getattr(key, "address", key))


def _names(pair: Pair) -> dict[str, str]:
    return {"target": address_of(pair.target), "draft": address_of(pair.draft)}


def _reachable(rendezvous: str, target: PeerKey) -> str:
    """Where a target listens; on all of its addresses = at the one that the router knows."""
    host, _, port = rendezvous.rpartition(":")
    return rendezvous if host else f"{address_of(target).rpartition(':')[0]}:{port}"


def _pause_s(failures: int) -> float:
    return min(RETRY_MOST_S, RETRY_FIRST_S * 2.0 ** min(failures - 1, 10)) if failures else 0.0
