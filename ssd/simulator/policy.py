"""Who decides how a row runs: a fixed setting, or the governor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ssd.speculation.fan_out import FanOut, MeasuredFanOut
from ssd.speculation.governor import Decision, Governor
from ssd.speculation.prediction import Load, Mode, Setting
from ssd.speculation.ranks import AcceptanceStatistics


class Policy(Protocol):
    """Decides each round of each row of one target, and learns from its outcomes."""

    def decide(self, sequence: int, rows: int) -> Decision: ...

    def observe(
        self, sequence: int, accepted: int, depth: int, rank: int | None, listed: int | None, after_hit: bool
    ) -> None: ...

    def forget(self, sequence: int) -> None: ...

    def allocate(self, decision: Decision, depth_in_flight: int, after_hit: bool) -> tuple[int, ...]: ...


class Learning:
    """Statistics of the workload, and fan-outs measured by them (or by a given rule)."""

    def __init__(self, statistics: AcceptanceStatistics | None = None, fan_out: FanOut | None = None) -> None:
        self.statistics = statistics or AcceptanceStatistics()
        self._fan_out = fan_out
        self._measured: dict[int, MeasuredFanOut] = {}
        self._known: dict[tuple[int, int, bool], tuple[int, tuple[int, ...]]] = {}

    def observe(
        self, sequence: int, accepted: int, depth: int, rank: int | None, listed: int | None, after_hit: bool
    ) -> None:
        self.statistics.observe(accepted, depth, rank, listed=listed, after_hit=after_hit)

    def forget(self, sequence: int) -> None:
        pass

    def allocate(self, decision: Decision, depth_in_flight: int, after_hit: bool) -> tuple[int, ...]:
        if self._fan_out is not None:
            return self._fan_out.allocate(depth_in_flight, after_hit)
        if after_hit and len(decision.fan_out) == depth_in_flight + 1:
            return decision.fan_out
        key = (decision.budget, depth_in_flight, after_hit)
        version, fan_out = self._known.get(key, (-1, ()))
        # What much has been learnt about hardly changes any more, and working it out is the slowest part of a round.
        if version < 0 or self.statistics.version > version + 8 + version // 4:
            rule = self._measured.setdefault(decision.budget, MeasuredFanOut(self.statistics, decision.budget))
            fan_out = rule.allocate(depth_in_flight, after_hit)
            self._known[key] = self.statistics.version, fan_out
        return fan_out


class FixedPolicy(Learning):
    """Always the same setting."""

    def __init__(
        self, setting: Setting, statistics: AcceptanceStatistics | None = None, fan_out: FanOut | None = None
    ) -> None:
        super().__init__(statistics, fan_out)
        self._decision = Decision(setting)

    def decide(self, sequence: int, rows: int) -> Decision:
        return self._decision


class GovernedPolicy(Learning):
    """The real governor.

    load               what it is told of a target with so many rows
    ngram_acceptance   as it is offered to the governor
    """

    def __init__(
        self,
        governor: Governor,
        load: Callable[[int], Load],
        statistics: AcceptanceStatistics | None = None,
        ngram_acceptance: float | None = None,
    ) -> None:
        super().__init__(statistics)
        self.governor = governor
        self._load = load
        self._ngram_acceptance = ngram_acceptance
        self._modes: dict[int, Mode] = {}
        self.mode_changes = 0  # of all sequences, trials apart

    def decide(self, sequence: int, rows: int) -> Decision:
        decision = self.governor.decide(
            sequence, self.statistics, self._load(rows), ngram_acceptance=self._ngram_acceptance
        )
        if not decision.probe:
            self.mode_changes += self._modes.get(sequence, decision.mode) is not decision.mode
            self._modes[sequence] = decision.mode
        return decision

    def forget(self, sequence: int) -> None:
        self.governor.forget(sequence)
        self._modes.pop(sequence, None)
