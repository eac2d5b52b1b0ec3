"""The target's ends: a thread takes bundles in, and the engine looks up the laws that it needs."""

from __future__ import annotations

from collections.abc import Callable

from protos.ssd.v1 import types_pb2
from ssd.tensor_plane.channel import Broken, Bundle, Channel, Measured
from ssd.tensor_plane.end import OPEN, End
from ssd.tensor_plane.packing import PackedLaws
from ssd.tensor_plane.store import LawStore


class ReceivingEnd(End):
    """See End. `laws` holds what has come."""

    def __init__(
        self,
        number: int,
        limit_s: float,
        connect: Callable[[], Channel],
        tell: Callable[[types_pb2.PlaneReport], None],
        awaited: Callable[[], None],
    ) -> None:
        """awaited: called from this end's thread when a bundle comes that was asked for before."""
        super().__init__(number, limit_s, connect, tell)
        self.laws = LawStore()
        self.damaged = 0  # bundles that made no sense
        self._awaited = awaited

    def _begin(self, channel: Channel) -> Measured:
        return channel.begin_receiving()

    def _serve(self, channel: Channel) -> None:
        while self.state == OPEN:
            with self._step("receiving"):
                bundle = channel.receive()
            if bundle is not None and self.laws.put(bundle.number, self._laws(bundle)):
                self._awaited()
            # A draft that lives and sends, but not what it has told of, is no use either.
            if self.laws.overdue(self._limit_s):
                raise Broken(f"a bundle that the draft told of did not come within {self._limit_s:g} s")

    def _laws(self, bundle: Bundle) -> PackedLaws | None:
        try:
            return PackedLaws(bundle.tensors)
        except ValueError:
            self.damaged += 1
            return None

    def _ended(self) -> None:
        self.laws.close()
