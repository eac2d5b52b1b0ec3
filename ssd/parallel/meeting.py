"""Rank 0's socket for the pulse, and how the other ranks come to it."""

import json
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata

import structlog
import torch
import torch.distributed as dist

from ssd.errors import FieldError
from ssd.parallel.group import MEET_WITHIN_S, listen_anywhere
from ssd.parallel.place import LOOPBACK, Place
from ssd.parallel.reasons import reason_of

_INVITATION = "invitation"
_HELLO = struct.Struct("<QQ")
_LOOK_EVERY_S = 0.2
_ANSWER_WITHIN_S = 5.0
_MOST_SILENT = 64
"""Connections that have not said who they are; of more than that the oldest is closed."""

log = structlog.get_logger()


@dataclass
class _Arrival:
    """A connection; rank 0 itself = nobody yet."""

    socket: socket.socket
    rank: int = 0
    since: float = field(default_factory=time.monotonic)


class Meeting:
    """Rank 0 invites the others through the store. Only who has read the invitation is let in."""

    def __init__(self, place: Place, store: dist.Store, plan: str) -> None:
        self._place = place
        self._token = secrets.randbits(63)
        on_loopback = place.address == LOOPBACK
        self._listening = socket.create_server((LOOPBACK, 0)) if on_loopback else listen_anywhere(0)
        self._listening.setblocking(False)
        self._selector = selectors.DefaultSelector()
        port = self._listening.getsockname()[1]
        invitation = {"port": port, "token": self._token, "size": place.size, "versions": versions(), "plan": plan}
        store.set(_INVITATION, json.dumps(invitation))

    def gather(self, check: Callable[[], None]) -> Mapping[int, socket.socket]:
        """The sockets of all other ranks. `check` is called now and then, and raises where waiting has no sense.

        Nobody is waited for alone: a stranger that connects and says nothing must not hold up the ranks."""
        deadline = time.monotonic() + MEET_WITHIN_S
        with self._selector, self._listening:
            self._selector.register(self._listening, selectors.EVENT_READ)
            while len(self._arrived()) < self._place.size - 1:
                check()
                if time.monotonic() > deadline:
                    absent = sorted(set(range(1, self._place.size)) - self._arrived().keys())
                    raise FieldError("engine.tp", f"ranks {absent} have not come within {MEET_WITHIN_S:g} s")
                for key, _ in self._selector.select(_LOOK_EVERY_S):
                    if key.fileobj is self._listening:
                        self._accept()
                    else:
                        self._hear(key.data)
                self._turn_away_silent()
            arrived = self._arrived()
            for one in self._connections():
                if one.rank == 0:
                    one.socket.close()
            return arrived

    def _connections(self) -> list[_Arrival]:
        return [key.data for key in self._selector.get_map().values() if key.data is not None]

    def _arrived(self) -> dict[int, socket.socket]:
        return {one.rank: one.socket for one in self._connections() if one.rank}

    def _accept(self) -> None:
        try:
            connected, _ = self._listening.accept()
        except OSError:  # it has gone again
            return
        connected.setblocking(False)
        self._selector.register(connected, selectors.EVENT_READ, _Arrival(connected))

    def _hear(self, one: _Arrival) -> None:
        """A hello, or the end of a rank that had come: another incarnation of it may come yet."""
        try:
            said = one.socket.recv(_HELLO.size)
        except OSError:
            said = b""
        if one.rank:
            log.warning("a rank has ended while others were waited for", rank=one.rank)
        elif (rank := self._rank_of(said)) and rank not in self._arrived():
            one.rank = rank
            return
        self._turn_away(one)

    def _rank_of(self, said: bytes) -> int:
        """Who says this; 0 = a stranger."""
        if len(said) < _HELLO.size:
            return 0
        token, rank = _HELLO.unpack(said)
        return int(rank) if token == self._token and rank < self._place.size else 0

    def _turn_away_silent(self) -> None:
        # In the order in which they came.
        silent = [one for one in self._connections() if one.rank == 0]
        too_many = len(silent) - _MOST_SILENT
        for number, one in enumerate(silent):
            if number < too_many or time.monotonic() - one.since > _ANSWER_WITHIN_S:
                self._turn_away(one)

    def _turn_away(self, one: _Arrival) -> None:
        self._selector.unregister(one.socket)
        one.socket.close()


def attend(place: Place, store: dist.Store) -> tuple[str, socket.socket]:
    """The plan, and this rank's socket to rank 0, once all ranks have come there. FieldError where they do not come in
    time, or this rank does not belong to them; OSError or a store's error where rank 0 does not answer."""
    invitation = json.loads(store.get(_INVITATION))
    if (theirs := invitation.get("versions")) != versions():
        raise FieldError("version", f"this rank has {versions()}, rank 0 {theirs or 'an older one'}: install the same")
    if (size := invitation["size"]) != place.size:
        raise FieldError("WORLD_SIZE", f"is {place.size} for rank {place.rank}, but {size} for rank 0")
    connected = socket.create_connection((place.address, invitation["port"]), timeout=_ANSWER_WITHIN_S)
    connected.sendall(_HELLO.pack(invitation["token"], place.rank))
    connected.settimeout(MEET_WITHIN_S)
    try:
        # Rank 0's first sign of life. Operations of the group wait less patiently than this, so none is begun before.
        all_here = connected.recv(1, socket.MSG_PEEK)
    except OSError as error:
        raise FieldError("engine.tp", f"the ranks have not come together: {reason_of(error)}") from error
    if not all_here:
        raise FieldError("RANK", f"rank 0 has turned rank {place.rank} away or has ended: is there another rank of it?")
    return invitation["plan"], connected


def versions() -> str:
    """What must be the same in all ranks, whose processes talk in the program's and torch's own formats."""
    return f"ssd-serve {metadata.version('ssd-serve')} with torch {torch.__version__.partition('+')[0]}"
