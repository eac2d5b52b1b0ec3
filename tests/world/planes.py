"""Tensor planes between two engines of one process, which lose, keep back and break on demand. No threads, no clock."""

import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from protos.ssd.v1 import types_pb2
from ssd.speculation.law import LawRef, SparseLaw
from ssd.tensor_plane.choice import Ability, Kind, ability_message
from ssd.tensor_plane.end import BROKEN, OPEN, OPENING
from ssd.tensor_plane.packing import PackedLaws, pack
from ssd.tensor_plane.sending import Outgoing
from ssd.tensor_plane.store import Absent, LawStore

ABILITY = ability_message(Ability("here", (), frozenset({Kind.GLOO})))


@dataclass
class Wire:
    """What lies between a draft's side and a target's. Bundles arrive in order: one that is kept back keeps back what
    is behind it, until the next one is posted or `deliver` is called.

    lose, keep   chances for each bundle
    """

    rng: random.Random = field(default_factory=random.Random)
    lose: float = 0.0
    keep: float = 0.0
    posted: int = 0
    _waiting: deque[tuple[LawStore, int, PackedLaws]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.sending, self.receiving = Sending(self), Receiving()

    def post(self, bundle: Outgoing) -> None:
        self.posted += 1
        self.deliver()
        store = self.receiving.stores.get(bundle.plane)
        if store is None or self.rng.random() < self.lose:
            return
        self._waiting.append((store, bundle.number, PackedLaws(pack(bundle.laws))))
        if self.rng.random() >= self.keep:
            self.deliver()

    def deliver(self) -> None:
        """Everything that was kept back arrives."""
        while self._waiting:
            store, number, laws = self._waiting.popleft()
            if store.put(number, laws):
                self.receiving.wake(1)

    def cut(self) -> None:
        """The plane breaks, and both ends notice."""
        for plane, store in self.receiving.stores.items():
            store.close()
            for side in (self.sending, self.receiving):
                side.say(plane, BROKEN, reason="cut")
        self.sending.open.clear()
        self._waiting.clear()


class _Side:
    ability = ABILITY

    def __init__(self) -> None:
        self.wake: Callable[[int], None] = lambda stream: None
        self.orders: list[types_pb2.PlaneOrder] = []
        self._reports: list[tuple[int, types_pb2.PlaneReport]] = []

    def say(self, plane: int, state: int, **fields: object) -> None:
        self._reports.append((1, types_pb2.PlaneReport(plane=plane, state=state, **fields)))  # type: ignore[arg-type]

    def reports(self) -> list[tuple[int, types_pb2.PlaneReport]]:
        said, self._reports = self._reports, []
        return said


class Receiving(_Side):
    """Implements LawReceiver."""

    def __init__(self) -> None:
        super().__init__()
        self.stores: dict[int, LawStore] = {}

    def order(self, stream: int, order: types_pb2.PlaneOrder) -> None:
        self.orders.append(order)
        self.stores[order.plane] = LawStore()
        self.say(order.plane, OPENING, rendezvous=":1")

    def close(self, stream: int, plane: int) -> None:
        if plane in self.stores:
            self.stores.pop(plane).close()

    def close_stream(self, stream: int) -> None:
        for plane in list(self.stores):
            self.close(stream, plane)

    def law(self, stream: int, ref: LawRef) -> SparseLaw | Absent:
        store = self.stores.get(ref.plane)
        return Absent.CLOSED if store is None else store.law(ref.bundle, ref.row)


class Sending(_Side):
    """Implements LawSender. Both ends are open as soon as the draft has its order."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self.open: dict[int, int] = {}  # plane by target
        self._wire = wire
        self._numbers = itertools.count(1)

    def order(self, stream: int, order: types_pb2.PlaneOrder) -> None:
        self.orders.append(order)
        self.open[order.target] = order.plane
        self.say(order.plane, OPEN, latency_us=1.0, bandwidth=1.0)
        self._wire.receiving.say(order.plane, OPEN)

    def close(self, stream: int, plane: int) -> None:
        self.open = {target: known for target, known in self.open.items() if known != plane}

    def close_stream(self, stream: int) -> None:
        self.open.clear()

    def bundle(self, stream: int, target: int) -> Outgoing | None:
        plane = self.open.get(target)
        return None if plane is None else Outgoing(plane, next(self._numbers), self._wire.post)
