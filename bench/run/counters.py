"""What the router counts, before and after: step times of target and draft, what AUTO did, preemptions."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field

import grpc
from prometheus_client.parser import text_string_to_metric_families

from protos.ssd.v1 import admin_pb2, admin_pb2_grpc
from ssd.telemetry.endpoint import PATH

WITHIN_S = 10.0


@dataclass(frozen=True)
class Counters:
    """Sums since the services started, or between two readings. Steps and passes with prefill are left out.

    verify_s, verify_steps   target steps: seconds and how many
    draft_s, draft_passes    forward passes of the draft, likewise
    modes                    rounds of mode AUTO by the mode decided for
    preemptions              of the target; the draft's are tables dropped for want of room. As of the last heartbeat
    """

    verify_s: float = 0.0
    verify_steps: float = 0.0
    draft_s: float = 0.0
    draft_passes: float = 0.0
    modes: Mapping[str, float] = field(default_factory=dict)
    preemptions: int = 0
    draft_preemptions: int = 0

    def since(self, before: Counters) -> Counters:
        """What came after `before`."""
        return Counters(
            self.verify_s - before.verify_s,
            self.verify_steps - before.verify_steps,
            self.draft_s - before.draft_s,
            self.draft_passes - before.draft_passes,
            {mode: count - before.modes.get(mode, 0.0) for mode, count in self.modes.items()},
            self.preemptions - before.preemptions,
            self.draft_preemptions - before.draft_preemptions,
        )

    def plus(self, other: Counters) -> Counters:
        """Both together."""
        return Counters(
            self.verify_s + other.verify_s,
            self.verify_steps + other.verify_steps,
            self.draft_s + other.draft_s,
            self.draft_passes + other.draft_passes,
            {m: self.modes.get(m, 0.0) + other.modes.get(m, 0.0) for m in {*self.modes, *other.modes}},
            self.preemptions + other.preemptions,
            self.draft_preemptions + other.draft_preemptions,
        )

    @property
    def verify_ms(self) -> float | None:
        """Mean target step."""
        return 1000.0 * self.verify_s / self.verify_steps if self.verify_steps else None

    @property
    def draft_ms(self) -> float | None:
        """Mean pass of the draft."""
        return 1000.0 * self.draft_s / self.draft_passes if self.draft_passes else None

    @property
    def draft_share(self) -> float | None:
        """Time that the draft computed over time that the target did: what drafting took for each target step, in
        target steps. A draft that goes on until the outcome comes shows about 1 here."""
        return self.draft_s / self.verify_s if self.verify_s and self.draft_s else None


class CounterReader:
    """Reads a router. Metrics over HTTP where an address is known, else step times stay unknown."""

    def __init__(self, channel: grpc.Channel, metrics: str | None) -> None:
        self._admin = admin_pb2_grpc.AdminServiceStub(channel)
        self._metrics = metrics

    def read(self) -> Counters:
        """All counters now. What cannot be read is 0 throughout, so that differences are 0 too."""
        load = self._admin.GetLoad(admin_pb2.GetLoadRequest(), timeout=WITHIN_S)
        sums, modes = self._scrape() if self._metrics else ({}, {})
        return Counters(
            sums.get("ssd_verify_seconds_sum", 0.0),
            sums.get("ssd_verify_seconds_count", 0.0),
            sums.get("ssd_draft_seconds_sum", 0.0),
            sums.get("ssd_draft_seconds_count", 0.0),
            modes,
            load.target.preemptions,
            load.draft.preemptions,
        )

    def _scrape(self) -> tuple[dict[str, float], dict[str, float]]:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(f"http://{self._metrics}{PATH}", timeout=WITHIN_S) as answer:
            return parse(answer.read().decode())


def parse(text: str) -> tuple[dict[str, float], dict[str, float]]:
    """({sample: value} of step times without prefill, {mode: rounds} of AUTO) from Prometheus text."""
    sums: dict[str, float] = {}
    modes: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(("ssd_verify_seconds_", "ssd_draft_seconds_")):
                if sample.labels.get("prefill") == "no" and not sample.name.endswith("_bucket"):
                    sums[sample.name] = sample.value
            elif sample.name == "ssd_governor_rounds_total":
                modes[sample.labels["mode"]] = sample.value
    return sums, modes
