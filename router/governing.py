"""The governor's hands and eyes in mode AUTO: what it is fed with, and how its decisions reach target and drafts.

Statistics are kept of every sequence that is speculated for, so that a new one in mode AUTO begins with what its
workload has shown. Step times are those that targets and drafts report; all targets serve one model, and so are taken
for alike, as are all drafts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import islice

from protos.ssd.v1 import admin_pb2, draft_pb2, target_pb2, types_pb2
from router.live import Live
from ssd.speculation.governor import Decision, Governor
from ssd.speculation.prediction import Fallback, Lateness, Limits, Load, Mode, sent_first
from ssd.speculation.ranks import AcceptanceStatistics, DecayingRate
from ssd.speculation.step_time import StepTime, StepTimeFit
from ssd.telemetry.trace import NO_TRACER, Tracer

# Believed until steps were seen; what counts is that a draft is a few times faster.
TARGET_PRIOR = StepTime(0.02, 2e-4, 1e-4)
DRAFT_PRIOR = StepTime(0.004, 4e-5, 2e-5)

_MODES = {Mode.AR: types_pb2.MODE_AR, Mode.SD: types_pb2.MODE_SD, Mode.SSD: types_pb2.MODE_SSD}
_FALLBACKS = {
    Fallback.NONE: types_pb2.FALLBACK_NONE,
    Fallback.NGRAM: types_pb2.FALLBACK_NGRAM,
    Fallback.JIT: types_pb2.FALLBACK_JIT,
}
_ALLOWED = {number: frozenset({fallback}) for fallback, number in _FALLBACKS.items()}

# Half-life, prior and its weight of the acceptance of prompt lookup.
_NGRAM = (500.0, 0.3, 10.0)
LONGEST_STEP_MS = 5000.0
"""What takes longer was no step but a process that stood still, and says nothing about steps."""
_RTT_WEIGHT = 0.2
# Steps after the first table is asked for, or after the last one, that may have begun before the draft heard of it.
_STEPS_IN_FLIGHT = 2
# Rounds after a decision until a proposal is sure to come from a table that was made for it.
_ROUNDS_IN_FLIGHT = 3
# A look at all settings takes milliseconds, in a process that streams to everybody. So there are only so many for each
# step of a target, and where many sequences are due at once they take turns.
REVIEWS_PER_STEP = 0.25
REVIEWS_SAVED = 4.0


@dataclass
class Governing:
    """Not thread-safe; no clock but the rounds and, for timelines, the tracer's."""

    target: StepTimeFit = field(default_factory=lambda: StepTimeFit(TARGET_PRIOR))  # steps beside which tables are made
    alone: StepTimeFit = field(default_factory=lambda: StepTimeFit(TARGET_PRIOR))  # steps beside which none is
    draft: StepTimeFit = field(default_factory=lambda: StepTimeFit(DRAFT_PRIOR))  # passes that nobody waits for
    asked: StepTimeFit = field(default_factory=lambda: StepTimeFit(DRAFT_PRIOR))  # passes that a target waits for
    lateness: Lateness = field(default_factory=Lateness)  # of tables, in rounds that were decided about
    workload: AcceptanceStatistics = field(default_factory=AcceptanceStatistics)
    tracer: Tracer = NO_TRACER
    decisions: Counter[tuple[str, str, bool]] = field(default_factory=Counter)  # new ones: (mode, fallback, probe)
    rounds: Counter[str] = field(default_factory=Counter)  # governed rounds, by the mode decided for
    _statistics: dict[int, AcceptanceStatistics] = field(default_factory=dict)
    _ngram: DecayingRate = field(default_factory=lambda: DecayingRate(_NGRAM[0]))
    _governors: dict[Limits, Governor] = field(default_factory=dict)
    _decided: dict[int, Decision] = field(default_factory=dict)
    _common: dict[Limits, Decision] = field(default_factory=dict)  # the last one that was no trial
    _steady: Counter[int] = field(default_factory=Counter)  # rounds of a sequence since its last decision
    _rtt: dict[object, float] = field(default_factory=dict)  # seconds, by peer
    _governed: set[int] = field(default_factory=set)
    _anticipating: set[int] = field(default_factory=set)  # sequences that tables are made for
    _rows: int = 1  # sequences of the batch, when one was last decided about
    _unclear: int = 0  # coming steps of which nobody knows what runs beside them
    _reviews: float = REVIEWS_SAVED  # that may be made now
    _waiting: dict[int, None] = field(default_factory=dict)  # sequences that would be looked at, in order

    # What is measured

    def target_stepped(self, timing: target_pb2.StepTiming) -> None:
        """A step of a target. Steps with prefill are another matter than the rounds that are decided about.

        On a GPU that target and draft share a step takes longer while tables are made. Tables of a few rows count as
        well: AR and SD, which `alone` is for, have none at all.
        """
        self._reviews = min(REVIEWS_SAVED, self._reviews + REVIEWS_PER_STEP)
        if self._unclear:
            self._unclear -= 1
        elif self._governed:
            _observe(self.target if self._anticipating else self.alone, timing)

    def draft_stepped(self, timing: draft_pb2.DraftTiming) -> None:
        """A forward pass of a draft. On a GPU that it shares with the target it takes a few times longer while the
        target computes, so what the target waits for is known by itself."""
        if self._governed:
            _observe(self.asked if timing.asked else self.draft, timing)

    def round_trip(self, peer: object, seconds: float) -> None:
        """A message to a peer and its answer took so long."""
        known = self._rtt.get(peer, seconds)
        self._rtt[peer] = known + _RTT_WEIGHT * (seconds - known)

    def peer_lost(self, peer: object) -> None:
        self._rtt.pop(peer, None)

    def observe(self, live: Live, outcome: target_pb2.StepOutcome, rank: int | None, listed: int | None) -> None:
        """A round's outcome; rank and listed as AcceptanceStatistics.observe has them."""
        if not live.plan.governed:
            self._see_tables(live)
        proposed, accepted = outcome.proposed, outcome.accepted
        if accepted > proposed:
            return  # no target of ours says that
        if outcome.source == types_pb2.PROPOSAL_SOURCE_NGRAM:
            for position in range(min(accepted + 1, proposed)):
                self._ngram.observe(position < accepted)
            return
        if not proposed and live.wanted_fallback == types_pb2.FALLBACK_NGRAM:
            self._ngram.observe(False)  # nothing was found, which is worth as much as a wrong token
        after_hit = outcome.source == types_pb2.PROPOSAL_SOURCE_TABLE
        if after_hit:
            self._see_lateness(live, proposed)
        self._of(live.sequence).observe(accepted, proposed, rank, listed=listed, after_hit=after_hit)

    # What is decided

    def begin(self, live: Live) -> None:
        """A sequence in mode AUTO begins, as others of its kind were last decided about."""
        common = self._common.get(_limits(live))
        if common is not None:
            reason = f"{common.reason}; of others, until this one is looked at"
            self._adopt(live, replace(common, reason=reason), None)

    def decide(self, live: Live, rows: tuple[int, int]) -> None:
        """Decide how the next round of a sequence runs, and note in `live` what its peers have to hear.

        rows: sequences at its target, and at its first draft.
        """
        self._governed.add(live.sequence)
        decision = before = self._decided.get(live.sequence)
        # A trial is not made longer by waiting for a turn.
        if self._has_turn(live.sequence) or (before is not None and before.probe):
            load = Load(max(1, rows[0]), self._way(live), rows[1])
            self._rows = load.rows
            decision = self._governor(live).decide(
                live.sequence, self._of(live.sequence), load, ngram_acceptance=self._ngram_acceptance(live)
            )
        if decision is not None:
            self.rounds[decision.mode.value] += 1
            self._steady[live.sequence] += 1
            if decision is not before:
                self._reviews = max(0.0, self._reviews - 1.0)
                self._adopt(live, decision, before)
                if not decision.probe:
                    self._common[_limits(live)] = decision
        else:
            self.begin(live)
        self._see_tables(live)

    def _adopt(self, live: Live, decision: Decision, before: Decision | None) -> None:
        """Note a new decision, and in `live` what its peers have to hear."""
        self._decided[live.sequence] = decision
        if before is None or _settings(decision) != _settings(before):
            self._steady[live.sequence] = 0
            self.decisions[decision.mode.value, decision.fallback.value, decision.probe] += 1
            self._note(live.sequence, decision)
        live.wants_drafts = decision.mode is not Mode.AR
        live.anticipates = decision.mode is Mode.SSD
        live.asks_after_miss = decision.mode is Mode.SD or decision.fallback is Fallback.JIT
        live.wanted_fallback = types_pb2.FALLBACK_JIT if decision.mode is Mode.SD else _FALLBACKS[decision.fallback]
        plan = draft_pb2.DraftPlan(
            mode=_MODES[decision.mode], k=decision.k, depth=decision.depth, fan_out=decision.fan_out
        )
        if plan != live.draft_plan:
            live.draft_plan = plan

    def forget(self, live: Live) -> None:
        """The sequence has ended."""
        self._statistics.pop(live.sequence, None)
        self._decided.pop(live.sequence, None)
        self._steady.pop(live.sequence, None)
        self._governed.discard(live.sequence)
        self._waiting.pop(live.sequence, None)
        self._see_tables(live, ended=True)
        if live.plan.governed and (governor := self._governors.get(_limits(live))) is not None:
            governor.forget(live.sequence)

    # What is shown

    def decision(self, sequence: int) -> admin_pb2.GovernorDecision | None:
        """The decision in force; None without one."""
        decision = self._decided.get(sequence)
        if decision is None:
            return None
        return admin_pb2.GovernorDecision(
            mode=_MODES[decision.mode],
            k=decision.k,
            depth=decision.depth,
            budget=decision.budget,
            fallback=_FALLBACKS[decision.fallback],
            fan_out=decision.fan_out,
            predicted_tokens_per_s={mode.value: rate for mode, rate in decision.predicted.items()},
            t_primary=decision.t_primary,
            hit_rate=decision.hit_rate,
            probe=decision.probe,
            reason=decision.reason,
        )

    def statistics(self, live: Live, positions: int = 8, ranks: int = 16) -> admin_pb2.AcceptanceStatistics:
        """What is known of a sequence; where it has shown nothing yet, what is known of its workload."""
        known = self._of(live.sequence)
        snapshot, depth = known.snapshot(positions), live.plan.k
        law, covered = known.outcome_law(depth), known.coverage_of(depth)
        coverage = [sum(p * covered(k, f) for k, p in enumerate(law)) for f in range(1, ranks + 1)]
        return admin_pb2.AcceptanceStatistics(
            acceptance=snapshot.acceptance,
            acceptance_at=snapshot.after_hit,
            coverage=coverage,
            observations=snapshot.rounds,
        )

    # Inside

    def _see_tables(self, live: Live, *, ended: bool = False) -> None:
        """Keep in mind whether tables are made for a sequence, governed or not."""
        before = bool(self._anticipating)
        if live.anticipates and live.links and not ended:
            self._anticipating.add(live.sequence)
        else:
            self._anticipating.discard(live.sequence)
        if bool(self._anticipating) != before:
            self._unclear = _STEPS_IN_FLIGHT

    def _see_lateness(self, live: Live, proposed: int) -> None:
        """A round verified a proposal from a table: whether that was the whole one."""
        decision = self._decided.get(live.sequence)
        if decision is None or decision.mode is not Mode.SSD or self._steady[live.sequence] < _ROUNDS_IN_FLIGHT:
            return
        if sent_first(decision.depth) < decision.depth:
            self.lateness.observe(proposed < decision.depth, decision.late, 1.0 / self._rows)

    def _note(self, sequence: int, decision: Decision) -> None:
        """A decision, and what it was taken from, in the timeline."""
        at = self.tracer.now()
        if at:
            fits = {"target": self.target, "alone": self.alone, "draft": self.draft, "asked": self.asked}
            known = {"slowness": round(self.lateness.slowness, 3)}
            known |= {f"{name}_ms": round(fit.model(1, 1) * 1e3, 3) for name, fit in fits.items() if fit.observations}
            self.tracer.instant("governor", decision.mode.value, at, sequence=sequence, reason=decision.reason, **known)

    def _of(self, sequence: int) -> AcceptanceStatistics:
        known = self._statistics.get(sequence)
        if known is None:
            known = self._statistics[sequence] = AcceptanceStatistics(parent=self.workload)
        return known

    def _governor(self, live: Live) -> Governor:
        limits = _limits(live)
        if limits not in self._governors:
            self._governors[limits] = Governor(
                self.target, self.draft, limits, asked=self.asked, alone=self.alone, lateness=self.lateness
            )
        return self._governors[limits]

    def _has_turn(self, sequence: int) -> bool:
        """Whether a sequence may be looked at now; most that may are not due, which costs nothing."""
        self._waiting.setdefault(sequence)
        if sequence not in islice(self._waiting, int(self._reviews)):
            return False
        del self._waiting[sequence]
        return True

    def _way(self, live: Live) -> float:
        """Seconds from the target by the router to the first draft and back again."""
        draft = self._rtt.get(live.links[0].key, 0.0) if live.links else 0.0
        return self._rtt.get(live.target, 0.0) + draft

    def _ngram_acceptance(self, live: Live) -> float | None:
        if live.plan.fallback not in (types_pb2.FALLBACK_AUTO, types_pb2.FALLBACK_NGRAM):
            return None
        return self._ngram.estimate(_NGRAM[1], _NGRAM[2])


def _limits(live: Live) -> Limits:
    """How far the governor may go with a sequence: as its request allows."""
    fallbacks = _ALLOWED.get(live.plan.fallback, frozenset(Fallback))
    return Limits(max_k=live.plan.k, max_budget=live.plan.max_budget, fallbacks=fallbacks)


def _settings(decision: Decision) -> tuple[object, ...]:
    return decision.setting, decision.fan_out, decision.probe


def _observe(fit: StepTimeFit, timing: target_pb2.StepTiming | draft_pb2.DraftTiming) -> None:
    if not timing.prefill and timing.rows and timing.tokens and 0.0 < timing.step_ms < LONGEST_STEP_MS:
        fit.observe(timing.rows, timing.tokens, timing.step_ms / 1000.0)
