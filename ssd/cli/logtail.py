"""Reading a child's log while it grows: progress, prefixed copies, and the last words of a child that died."""

import json
from collections import deque
from pathlib import Path
from typing import Any

_NOT_SHOWN = ("service", "level", "timestamp", "event", "exception")


def describe(line: str) -> str:
    """A JSON log line as `event key=value …`; any other line as it is."""
    record = _record(line)
    if record is None:
        return line
    fields = (f"{key}={value}" for key, value in record.items() if key not in _NOT_SHOWN)
    text = " ".join((str(record["event"]), *fields))
    return f"{text}\n{record['exception']}" if "exception" in record else text


def loading(line: str) -> str | None:
    """What a line says about the loading of a model, for people; None if it is about something else."""
    record = _record(line)
    if record is None or record["event"] != "loading":
        return None
    return f"loading, {record.get('percent', 0)} % of {record.get('megabytes', '?')} MB"


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "event" in record else None


class LogTail:
    """Follows one log file; keeps its last lines."""

    def __init__(self, path: Path, keep: int = 12) -> None:
        self.path = path
        self._offset = 0
        self._partial = b""
        self._last: deque[str] = deque(maxlen=keep)

    def read(self) -> list[str]:
        """The complete lines written since the last call."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        self._offset += len(new)
        *complete, self._partial = (self._partial + new).split(b"\n")
        lines = [line.decode(errors="replace") for line in complete if line.strip()]
        self._last.extend(lines)
        return lines

    def last(self) -> list[str]:
        """The last lines so far, described; what is still unterminated counts as a line."""
        self.read()
        lines = [*self._last, self._partial.decode(errors="replace")] if self._partial.strip() else list(self._last)
        return [describe(line) for line in lines]
