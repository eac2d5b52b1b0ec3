"""Timelines: what target, draft and router did when, as one Chrome trace on one clock.

Times are those of time.monotonic(), which is CLOCK_MONOTONIC on Linux: one clock for all processes of one host (and of
one time namespace), so spans of different processes stand truly side by side. Between hosts they do not.

Each process writes a part of its own, `FILE.SERVICE-PID.part`; merge() joins them into FILE, which chrome://tracing and
ui.perfetto.dev open.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ssd.errors import FieldError

FLUSH_EVERY_S = 1.0
MOST_WAITING = 100_000
"""Events that wait to be written; more are dropped and counted."""
CHUNK = 64
"""Events encoded at a time: the interpreter is given up in between, because the traced threads need it."""
CHUNK_PAUSE_S = 0.0005

Value = int | float | str | bool


class Tracer(Protocol):
    """Where spans go. Callable from any thread; a call costs about as much as appending to a list."""

    def now(self) -> float:
        """The time on the trace's clock, for code that has no clock of its own; 0 where nobody is looking."""

    def span(self, lane: str, name: str, begun: float, ended: float, **values: Value) -> None:
        """Something that lasted, in a lane of this process; times in seconds of time.monotonic()."""

    def instant(self, lane: str, name: str, at: float, **values: Value) -> None:
        """Something that happened at one time."""

    def close(self) -> None:
        """Write what is left. Later events are dropped."""


class NoTracer:
    """Nobody is looking."""

    def now(self) -> float:
        return 0.0

    def span(self, lane: str, name: str, begun: float, ended: float, **values: Value) -> None:
        pass

    def instant(self, lane: str, name: str, at: float, **values: Value) -> None:
        pass

    def close(self) -> None:
        pass


NO_TRACER = NoTracer()

Event = tuple[str, str, float, float | None, Mapping[str, Value]]
"""(lane, name, begun, ended, values); ended None = an instant."""


class FileTracer:
    """Writes a part file: a line of JSON for the process, then a line for each few events.

    A thread writes every second and at the end of the process, so a process that is killed loses a second at most.
    """

    def __init__(self, file: Path, service: str, *, flush_every_s: float = FLUSH_EVERY_S) -> None:
        """Raises OSError if the part of `service` beside `file` cannot be made."""
        self.path = file.with_name(f"{file.name}.{service}-{os.getpid()}.part")
        self._out = self.path.open("w", encoding="utf-8")
        self._out.write(json.dumps({"service": service, "pid": os.getpid()}) + "\n")
        self._out.flush()
        self._waiting: deque[Event] = deque()
        self._dropped = 0
        self._every_s = flush_every_s
        self._closing = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="trace", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def now(self) -> float:
        return time.monotonic()

    def span(self, lane: str, name: str, begun: float, ended: float, **values: Value) -> None:
        self._add((lane, name, begun, ended, values))

    def instant(self, lane: str, name: str, at: float, **values: Value) -> None:
        self._add((lane, name, at, None, values))

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        with self._writing:
            if not self._out.closed:
                self._flush(0.0)
                self._out.close()
        atexit.unregister(self.close)

    def _add(self, event: Event) -> None:
        if self._closing.is_set() or len(self._waiting) >= MOST_WAITING:
            self._dropped += 1
        else:
            self._waiting.append(event)

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            with self._writing:
                self._flush(CHUNK_PAUSE_S)

    def _flush(self, pause_s: float) -> None:
        left = len(self._waiting)
        while left > 0:
            chunk = [self._waiting.popleft() for _ in range(min(CHUNK, left))]
            left -= len(chunk)
            self._out.write(json.dumps(chunk, separators=(",", ":")) + "\n")
            if pause_s:
                time.sleep(pause_s)
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            lost: Event = ("trace", "dropped", time.monotonic(), None, {"events": dropped})
            self._out.write(json.dumps([lost]) + "\n")
        self._out.flush()


def open_tracer(file: str, service: str) -> Tracer:
    """A tracer of this process; NO_TRACER where `file` is empty. Raises FieldError where it cannot be written."""
    if not file:
        return NO_TRACER
    try:
        return FileTracer(Path(file), service)
    except OSError as error:
        raise FieldError("trace", f"{file}: {error.strerror}") from None


def parts_of(file: Path) -> list[Path]:
    """The parts that processes wrote for `file`, by name."""
    return sorted(file.parent.glob(f"{_literal(file.name)}.*.part"))


def _literal(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


class PartError(ValueError):
    """A file is no part of a trace."""


def read_part(path: Path) -> tuple[str, int, list[Event]]:
    """(service, process id, events) of a part. The last line of a killed process may be cut off: it is left out.

    Raises PartError, OSError.
    """
    first, *lines = path.read_text(encoding="utf-8").split("\n")
    try:
        head = json.loads(first)
        service, pid = str(head["service"]), int(head["pid"])
        # What follows the last line end is empty, or a line that was not finished.
        events = [tuple(event) for line in lines[:-1] for event in json.loads(line)]
    except (ValueError, KeyError, TypeError) as error:
        raise PartError(f"{path} is no part of a trace: {error!r}") from None
    return service, pid, events


def chrome_events(parts: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Events of Chrome's trace format: names of processes and lanes, then complete spans ("X") and instants ("i"), in
    microseconds of CLOCK_MONOTONIC, by time. Raises PartError, OSError."""
    timed: list[dict[str, Any]] = []
    for part in parts:
        service, pid, events = read_part(part)
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": service}}
        lanes: dict[str, int] = {}
        for lane, name, begun, ended, values in events:
            if lane not in lanes:
                lanes[lane] = len(lanes) + 1
                yield {
                    "ph": "M",
                    "name": "thread_name",
                    "pid": pid,
                    "tid": lanes[lane],
                    "ts": 0,
                    "args": {"name": lane},
                }
            event: dict[str, Any] = {"name": name, "pid": pid, "tid": lanes[lane], "ts": begun * 1e6}
            if ended is None:
                event |= {"ph": "i", "s": "t"}
            else:
                event |= {"ph": "X", "dur": max(0.0, ended - begun) * 1e6}
            timed.append(event | ({"args": dict(values)} if values else {}))
    yield from sorted(timed, key=lambda event: event["ts"])


def merge(file: Path, parts: Sequence[Path]) -> int:
    """Join parts into `file`, a JSON array with an event on each line; returns how many spans and instants it has.

    Raises PartError, OSError.
    """
    count = 0
    with file.open("w", encoding="utf-8") as out:
        separator = "[\n"
        for event in chrome_events(parts):
            count += event["ph"] != "M"
            out.write(separator + json.dumps(event, separators=(",", ":")))
            separator = ",\n"
        out.write("\n]\n" if separator != "[\n" else "[]\n")
    return count
