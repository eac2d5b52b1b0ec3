"""A second thread beside one that calls into libraries which may never return."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator


class Guard:
    """Calls `expired` with what was being done when that takes longer than it may, and `closed` once, at the end.

    Both calls are made on the guard's own thread, so that neither the thread which is stuck nor the one that closes has
    to wait: an abort may hang as well.
    """

    def __init__(self, name: str, expired: Callable[[str], None], closed: Callable[[], None]) -> None:
        self._expired = expired
        self._closed = closed
        self._changed = threading.Condition()
        self._doing = ""
        self._deadline: float | None = None
        self._ending = False
        self._thread = threading.Thread(target=self._watch, name=f"{name} guard", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End it; never waits, and may be called again."""
        with self._changed:
            self._ending = True
            self._changed.notify()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread, `closed` among what it does; False if it has not ended in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @contextlib.contextmanager
    def within(self, limit_s: float, doing: str) -> Iterator[None]:
        """The block has limit_s seconds."""
        self._set(doing, time.monotonic() + limit_s)
        try:
            yield
        finally:
            self._set("", None)

    def _set(self, doing: str, deadline: float | None) -> None:
        with self._changed:
            self._doing, self._deadline = doing, deadline
            self._changed.notify()

    def _watch(self) -> None:
        while (doing := self._overstayed()) is not None:
            self._expired(doing)
        self._closed()

    def _overstayed(self) -> str | None:
        """Wait until something takes too long, and return it, once; None at the end."""
        with self._changed:
            while not self._ending:
                left = None if self._deadline is None else self._deadline - time.monotonic()
                if left is not None and left <= 0:
                    self._deadline = None
                    return self._doing
                self._changed.wait(left)
            return None
