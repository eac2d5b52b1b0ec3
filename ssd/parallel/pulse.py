"""Signs of life between ranks: a byte now and then over a socket, from a thread of its own.

A process that ends closes its sockets, which the others see at once. One that is stopped or hangs in the kernel falls
silent, which they see after the limit. Loading may hold a thread up for long, so a rank that has not said that it
serves may be silent longer.
"""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

LOADING, SERVING, LEAVING = b"l", b"s", b"q"
LOADING_SILENCE_S = 60.0
_BEATS = 10
"""Signs of life within the allowed silence."""


@dataclass
class Peer:
    """The rank at the other end of a socket."""

    rank: int
    socket: socket.socket
    heard: float = field(default_factory=time.monotonic)
    serving: bool = False
    """Whether the last byte said so: then the short limit holds."""


@dataclass(frozen=True)
class Loss:
    """`silent`: the rank's process may still be there."""

    rank: int
    reason: str
    silent: bool = False


class Pulse:
    """One end of all of a process's sockets to other ranks."""

    def __init__(
        self,
        silence_s: float,
        on_loss: Callable[[Loss], None],
        on_leave: Callable[[], None] = lambda: None,
        check: Callable[[], Loss | None] = lambda: None,
    ) -> None:
        """All are called on the pulse's thread, and on_loss once. `check` is asked at every beat for a loss that no
        socket shows; on_leave is called when a peer says that all is over."""
        self._silence_s = silence_s
        self._on_loss = on_loss
        self._on_leave = on_leave
        self._check = check
        self._state = LOADING
        self._selector = selectors.DefaultSelector()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def add(self, rank: int, connected: socket.socket) -> None:
        """One more peer; before `start`."""
        connected.setblocking(False)
        self._selector.register(connected, selectors.EVENT_READ, Peer(rank, connected))

    def start(self) -> None:
        self._thread.start()

    def serve(self) -> None:
        """From now on this process may not be silent for longer than the limit."""
        self._state = SERVING

    def leave(self) -> None:
        """Tells the peers that all is over; no loss is seen from now on."""
        self._over.set()
        for peer in self._peers():
            with contextlib.suppress(OSError):
                peer.socket.send(LEAVING)

    def stop(self) -> None:
        """Ends the thread and closes the sockets."""
        self._over.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(self._silence_s)
        for peer in self._peers():
            peer.socket.close()
        self._selector.close()

    def _run(self) -> None:
        beat_s = self._silence_s / _BEATS
        beat_at = time.monotonic()
        while not self._over.is_set():
            # What has come is read before silence is judged: this process may have been the one that stood still.
            loss = self._read(max(0.0, beat_at - time.monotonic())) or self._silent() or self._check()
            if loss is not None and not self._over.is_set():
                self._over.set()
                self._on_loss(loss)
                return
            if time.monotonic() >= beat_at:
                self._beat()
                beat_at = time.monotonic() + beat_s

    def _read(self, timeout_s: float) -> Loss | None:
        for key, _ in self._selector.select(timeout_s):
            peer: Peer = key.data
            try:
                got = peer.socket.recv(4096)
            except BlockingIOError:
                continue
            except OSError as error:
                return Loss(peer.rank, f"rank {peer.rank} is gone: {error}")
            if LEAVING in got:
                self._over.set()
                self._on_leave()
                return None
            if not got:
                return Loss(peer.rank, f"rank {peer.rank} has ended")
            peer.heard = time.monotonic()
            peer.serving = got.endswith(SERVING)
        return None

    def _silent(self) -> Loss | None:
        now = time.monotonic()
        for peer in self._peers():
            limit = self._silence_s if peer.serving else max(LOADING_SILENCE_S, self._silence_s)
            if now - peer.heard > limit:
                reason = f"rank {peer.rank} has given no sign of life for {limit:g} s"
                return Loss(peer.rank, reason, silent=True)
        return None

    def _beat(self) -> None:
        for peer in self._peers():
            # A full buffer or a broken socket shows in reading or in silence.
            with contextlib.suppress(OSError):
                peer.socket.send(self._state)

    def _peers(self) -> list[Peer]:
        return [key.data for key in list(self._selector.get_map().values())]
