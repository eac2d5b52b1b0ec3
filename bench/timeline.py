"""What a timeline says in numbers: how long things took, and how long an engine stood between two steps."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from ssd.telemetry.trace import read_part

STEPS = ("step", "forward")
"""Spans whose gaps say what an engine does between two of them: whole steps, and the model's part of them."""


def summary(parts: Sequence[Path]) -> Iterator[str]:
    """A line for each kind of span of each process: count, median, 99th percentile, sum; and for STEPS the gaps
    between one's end and the next one's beginning, by whether the engine waited for a message in it. Raises PartError,
    OSError."""
    for part in parts:
        service, pid, events = read_part(part)
        spans: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        for lane, name, begun, ended, _ in events:
            if ended is not None:
                spans[lane, name].append((begun, ended))
        for (lane, name), times in spans.items():
            yield f"{service} {pid}, {lane}: {name} {_of([ended - begun for begun, ended in times])}"
            if name in STEPS:
                waits = sorted(begun for begun, _ in spans.get((lane, "wait"), []))
                yield from (f"{service} {pid}, {lane}: {name}: {line}" for line in _gaps(sorted(times), waits))


def _gaps(steps: Sequence[tuple[float, float]], waits: Sequence[float]) -> Iterator[str]:
    straight: list[float] = []
    waited: list[float] = []
    at = 0
    for (_, ended), (begun, _) in pairwise(steps):
        while at < len(waits) and waits[at] < ended:
            at += 1
        (waited if at < len(waits) and waits[at] < begun else straight).append(max(0.0, begun - ended))
    if straight:
        yield f"gaps without a wait for messages {_of(straight)}"
    if waited:
        yield f"gaps with a wait for messages {_of(waited)}"


def _of(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    high = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return (
        f"{len(ordered)} times, median {1000 * statistics.median(ordered):.3f} ms, p99 {1000 * high:.3f} ms, "
        f"sum {sum(ordered):.3f} s"
    )
