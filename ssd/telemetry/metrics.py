"""Prometheus metrics of a router that are measured as they happen. docs/metrics.md explains each one.

What is counted anyway (rounds, hits, drops, peers) is not counted twice: router.metrics reads it when it is scraped.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.registry import Collector

# Seconds. Three in a decade; below a tenth of a millisecond there is nothing to tell apart.
_FINE = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_COARSE = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 300.0)


class Metrics:
    """One router's, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.queue = Histogram(
            "ssd_queue_seconds",
            "From a request's arrival until a target was there for it.",
            buckets=_FINE,
            registry=registry,
        )
        self.first_token = Histogram(
            "ssd_time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            ["mode"],
            buckets=_COARSE,
            registry=registry,
        )
        self.inter_token = Histogram(
            "ssd_inter_token_seconds",
            "Between two arrivals of tokens, per token of the later one.",
            ["mode"],
            buckets=_FINE,
            registry=registry,
        )
        self.request = Histogram(
            "ssd_request_seconds", "From a request's arrival to its end.", ["mode"], buckets=_COARSE, registry=registry
        )
        self.requests = Counter("ssd_requests", "Calls of Generate and GenerateStream.", ["status"], registry=registry)
        self.finished = Counter("ssd_finished", "Generations that came to an end.", ["reason"], registry=registry)
        self.verify = Histogram(
            "ssd_verify_seconds", "One step of a target.", ["prefill"], buckets=_FINE, registry=registry
        )
        self.draft = Histogram(
            "ssd_draft_seconds", "One forward pass of a draft.", ["prefill"], buckets=_FINE, registry=registry
        )

    def add(self, collector: Collector) -> None:
        """Join what is counted elsewhere."""
        self.registry.register(collector)


class RequestTimes:
    """The clock of one request. All times are seconds of one monotonic clock."""

    def __init__(self, metrics: Metrics, mode: str, begun: float) -> None:
        self._metrics = metrics
        self._inter_token = metrics.inter_token.labels(mode)
        self._mode = mode
        self._begun = begun
        self._last: float | None = None  # when tokens came last
        self._queued = True

    def placed(self, now: float) -> None:
        """A target is there for it; without effect after the first time."""
        if self._queued:
            self._queued = False
            self._metrics.queue.observe(now - self._begun)

    def tokens(self, now: float, count: int) -> None:
        """`count` tokens came."""
        if not count:
            return
        if self._last is None:
            self._metrics.first_token.labels(self._mode).observe(now - self._begun)
        else:
            self._inter_token.observe((now - self._last) / count)
        self._last = now

    def ended(self, now: float, reason: str | None) -> None:
        """It is over; reason: how the generation finished, None when it did not."""
        self._metrics.request.labels(self._mode).observe(now - self._begun)
        if reason is not None:
            self._metrics.finished.labels(reason).inc()
