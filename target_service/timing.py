"""How long steps take. The engine has no clock of its own: its caller tells the time."""

from __future__ import annotations

from collections.abc import Sequence

from protos.ssd.v1 import target_pb2
from ssd.telemetry.trace import Tracer
from target_service.scheduler import StepRow

_WEIGHT = 0.1  # of the newest step in the mean
_SURELY = 0.8  # of the typical time, which no step falls short of as long as the load is the same


class StepClock:
    """Times of the step that runs and of those before."""

    def __init__(self, tracer: Tracer) -> None:
        self.typical_s: float | None = None  # decaying mean over steps without prefill; None = none was timed
        self._tracer = tracer
        self._began = 0.0
        self._running: target_pb2.StepTiming | None = None

    def begin(self, now: float, rows: Sequence[StepRow]) -> None:
        """A step with these rows begins at monotonic time `now`, seconds."""
        self._began = now
        self._running = target_pb2.StepTiming(
            rows=len(rows),
            tokens=sum(row.query_tokens for row in rows),
            prefill=any(row.tokens > 1 or not row.complete for row in rows),
        )

    def surely_left(self, now: float) -> float:
        """Seconds that the step which runs will take at least, by those before it."""
        return 0.0 if self.typical_s is None else self._began + _SURELY * self.typical_s - now

    def end(self, now: float | None) -> target_pb2.StepTiming | None:
        """The step's outcomes are known at `now`; None without a step, or without a time."""
        timing, self._running = self._running, None
        if timing is None or now is None:
            return None
        seconds = now - self._began
        timing.step_ms = seconds * 1000.0
        self._tracer.span("engine", "step", self._began, now, rows=timing.rows, tokens=timing.tokens)
        if not timing.prefill:
            before = seconds if self.typical_s is None else self.typical_s
            self.typical_s = before + _WEIGHT * (seconds - before)
        return timing
