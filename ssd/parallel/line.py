"""The line from rank 0 to the other ranks: calls go out one at a time, packed, in the order in which all make them."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import structlog
import torch

from ssd.parallel.wire import LENGTH, Call, Kind, pack, unpack

log = structlog.get_logger()

HEAD_WORDS = 1024
"""Most calls fit into a first message of this fixed size; what is longer follows in a second one."""

Broadcast = Callable[[torch.Tensor], None]
"""Fills a CPU tensor of every rank with rank 0's; fails where a rank does not take part in time."""


class Line:
    """Rank 0's end."""

    def __init__(self, broadcast: Broadcast) -> None:
        self._busy_since: float | None = None
        self._broadcast = broadcast
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._last = time.monotonic()

    @property
    def busy_s(self) -> float:
        """How long the present call has been under way, seconds; 0 when none is. A watcher sees it hang."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    @contextlib.contextmanager
    def calling(self, call: Call) -> Iterator[None]:
        """The other ranks make this call, and so does rank 0 inside the context."""
        with self._lock:
            self._busy_since = time.monotonic()
            try:
                self._send(call)
                yield
            finally:
                self._last = time.monotonic()
                self._busy_since = None

    def keep_alive(self, every_s: float) -> None:
        """On a thread: no silence on the line is longer than `every_s`, so that waiting for a call has a limit too."""
        thread = threading.Thread(target=self._fill_silence, args=(every_s,), name="line", daemon=True)
        thread.start()

    def close(self) -> None:
        """Ends the thread of `keep_alive`."""
        self._closed.set()

    def _fill_silence(self, every_s: float) -> None:
        while not self._closed.wait(every_s / 2):
            if self._busy_since is None and time.monotonic() - self._last >= every_s / 2:
                try:
                    with self.calling(Call(Kind.NOOP)):
                        continue
                except RuntimeError as error:
                    # The group is broken, which whoever watches the ranks sees as well.
                    log.warning("the line is broken", error=str(error))
                    return

    def _send(self, call: Call) -> None:
        words = pack(call)
        head = torch.zeros(HEAD_WORDS, dtype=torch.int64)
        head[: len(words)] = words[:HEAD_WORDS]
        self._broadcast(head)
        if len(words) > HEAD_WORDS:
            self._broadcast(words[HEAD_WORDS:].contiguous())


def receive(broadcast: Broadcast, block_size: int) -> Call:
    """The next call on the line, at another rank."""
    head = torch.zeros(HEAD_WORDS, dtype=torch.int64)
    broadcast(head)
    length = int(head[LENGTH])
    if length <= HEAD_WORDS:
        return unpack(head, block_size)
    rest = torch.zeros(length - HEAD_WORDS, dtype=torch.int64)
    broadcast(rest)
    return unpack(torch.cat((head, rest)), block_size)
