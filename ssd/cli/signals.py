"""SIGINT, SIGTERM and SIGHUP as one exception."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequested(BaseException):
    """A signal asked this command to end. Not an Exception: no handler of failures may swallow it."""


@contextlib.contextmanager
def stop_on_signals() -> Iterator[None]:
    """Raise StopRequested in the main thread at a signal."""

    def handler(_number: int, _frame: FrameType | None) -> None:
        raise StopRequested

    with _handled_by(handler):
        yield


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Raise StopRequested for a signal only at the end of the block: for what must not be left half done."""
    arrived: list[int] = []
    with _handled_by(lambda number, _frame: arrived.append(number)):
        yield
    if arrived:
        raise StopRequested


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore the signals: for an orderly end, which takes bounded time anyway."""
    with _handled_by(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
