"""Rank 0's socket for the pulse, and how the other ranks come to it."""

import json
import secrets
import socket
import struct
import time
from collections.abc import Callable, Mapping

import torch.distributed as dist

from ssd.errors import FieldError
from ssd.parallel.group import MEET_WITHIN_S
from ssd.parallel.place import LOOPBACK, Place

_INVITATION = "invitation"
_HELLO = struct.Struct("<QQ")
_LOOK_EVERY_S = 0.2
_ANSWER_WITHIN_S = 5.0


class Meeting:
    """Rank 0 invites the others through the store. Only who has read the invitation is let in."""

    def __init__(self, place: Place, store: dist.Store, plan: str) -> None:
        self._place = place
        self._token = secrets.randbits(63)
        self._listening = socket.create_server((LOOPBACK if place.address == LOOPBACK else "", 0))
        port = self._listening.getsockname()[1]
        store.set(_INVITATION, json.dumps({"port": port, "token": self._token, "plan": plan}))

    def gather(self, check: Callable[[], None]) -> Mapping[int, socket.socket]:
        """The sockets of all other ranks. `check` is called now and then, and raises where waiting has no sense."""
        arrived: dict[int, socket.socket] = {}
        deadline = time.monotonic() + MEET_WITHIN_S
        self._listening.settimeout(_LOOK_EVERY_S)
        while len(arrived) < self._place.size - 1:
            check()
            if time.monotonic() > deadline:
                absent = sorted(set(range(1, self._place.size)) - arrived.keys())
                raise FieldError("engine.tp", f"ranks {absent} have not come within {MEET_WITHIN_S:g} s")
            try:
                connected, _ = self._listening.accept()
            except TimeoutError:
                continue
            rank = self._hello(connected)
            if rank is None or rank in arrived:
                connected.close()
            else:
                arrived[rank] = connected
        self._listening.close()
        return arrived

    def _hello(self, connected: socket.socket) -> int | None:
        connected.settimeout(_ANSWER_WITHIN_S)
        try:
            said = connected.recv(_HELLO.size, socket.MSG_WAITALL)
        except OSError:
            return None
        if len(said) < _HELLO.size:
            return None
        token, rank = _HELLO.unpack(said)
        return rank if token == self._token and 0 < rank < self._place.size else None


def attend(place: Place, store: dist.Store) -> tuple[str, socket.socket]:
    """The plan, and this rank's socket to rank 0. OSError or a store's error where rank 0 does not come in time."""
    invitation = json.loads(store.get(_INVITATION))
    connected = socket.create_connection((place.address, invitation["port"]), timeout=_ANSWER_WITHIN_S)
    connected.sendall(_HELLO.pack(invitation["token"], place.rank))
    return invitation["plan"], connected
