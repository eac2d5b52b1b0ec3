"""Step times of a simulated engine: a model, unsteady by a given share, and what the governor learns from it."""

from __future__ import annotations

import random

from ssd.speculation.step_time import StepTime, StepTimeFit


class StepTimer:
    """Seconds of passes; every pass is observed by `fit`, if there is one.

    jitter   relative deviation, uniform to both sides
    """

    def __init__(self, model: StepTime, fit: StepTimeFit | None, jitter: float, source: random.Random) -> None:
        self.model = model
        self.busy_s = 0.0
        self.passes = 0
        self._fit = fit
        self._jitter = jitter
        self._source = source

    def __call__(self, rows: int, tokens: int, *, prefill: bool = False) -> float:
        seconds = self.model(rows, tokens)
        if self._jitter:
            seconds *= self._source.uniform(1.0 - self._jitter, 1.0 + self._jitter)
        if self._fit is not None and not prefill:
            self._fit.observe(rows, tokens, seconds)
        self.busy_s += seconds
        self.passes += 1
        return seconds
