"""A small world to govern: synchronous rounds of one target batch and one draft with known laws."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from ssd.speculation.allocation import greedy_allocation, outcome_law
from ssd.speculation.governor import Decision, Governor
from ssd.speculation.prediction import Fallback, Limits, Load, Mode, Outlook, Setting, sent_first
from ssd.speculation.ranks import AcceptanceStatistics
from ssd.speculation.step_time import StepTime, StepTimeFit

VERIFY = 0.020
TARGET = StepTime(VERIFY, 2e-5, 1e-5, ((256, 8e-5),))


def draft_for(t_primary: float) -> StepTime:
    """A draft whose table of depth 6 and 21 branches for one sequence takes t_primary verifications."""
    step = t_primary * VERIFY / 7.0
    return StepTime(0.9 * step, 0.0, 0.1 * step / 24.0)


@dataclass(frozen=True)
class TrueStatistics:
    """What AcceptanceStatistics would know after endless observation."""

    acceptance: float
    exponent: float = 0.8

    def outcome_law(self, depth, *, after_hit=True):
        return outcome_law([self.acceptance] * depth)

    def coverage_of(self, depth):
        def covered(k, fan_out):
            if fan_out == 0:
                return 0.0
            first_miss = 1.0 - self.acceptance if k == depth else 2.0**-self.exponent
            return 1.0 - first_miss * ((fan_out + 1) / 2) ** -self.exponent

        return covered

    def rank(self, k, depth, source):
        miss, covered, rank = source.random(), self.coverage_of(depth), 1
        while rank < 200 and covered(k, rank) < miss:
            rank += 1
        return rank


@dataclass
class World:
    """Runs `governor` (or one fixed setting) for rows whose laws are `truth`; the governor sees only what happens."""

    truth: TrueStatistics
    draft: StepTime
    round_trip: float
    governor: Governor | None = None
    fixed: Setting | None = None
    target: StepTime = TARGET
    seed: int = 5
    seconds: float = 0.0
    free: float = 0.0  # when the draft can begin the next tables
    tokens: int = 0
    statistics: AcceptanceStatistics = field(default_factory=AcceptanceStatistics)
    in_flight: dict[int, tuple[int, bool]] = field(default_factory=dict)
    decisions: list[dict[int, Decision]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.source = random.Random(self.seed)
        self.fits = StepTimeFit(StepTime(0.010, 1e-5, 1e-5)), StepTimeFit(StepTime(0.002, 1e-6, 1e-6))
        if self.governor is None and self.fixed is None:
            self.governor = Governor(*self.fits)

    def run(self, rounds: int, rows: int) -> float:
        """Tokens per second over these rounds."""
        seconds, tokens = self.seconds, self.tokens
        for _ in range(rounds):
            self.round(rows)
        return (self.tokens - tokens) / (self.seconds - seconds)

    def round(self, rows: int) -> None:
        load = Load(rows, self.round_trip)
        if self.governor is not None:
            chosen = {row: self.governor.decide(row, self.statistics, load) for row in range(rows)}
        else:
            chosen = {row: Decision(self.fixed) for row in range(rows)}
        self.decisions.append(chosen)
        asking = [row for row, decision in chosen.items() if self.asks(rows, row, decision)]
        for row, decision in chosen.items():
            if row in asking:
                self.in_flight[row] = (decision.k, False)
            elif decision.mode is not Mode.SSD:
                self.in_flight[row] = (0, False)
        lengths = {row: self.in_flight.get(row, (0, False))[0] for row in range(rows)}
        wait = self.proposals([chosen[row].k for row in asking])
        # Nobody waits for what a few rows do on trial.
        if 2 * len(asking) >= rows:
            self.seconds += wait
            self.free = max(self.free, self.seconds - 0.5 * self.round_trip)
        self.seconds += self.measured(self.target, self.fits[0], rows, rows + sum(lengths.values()))
        drafting = {row: decision for row, decision in chosen.items() if decision.mode is Mode.SSD}
        used = self.tables(drafting, lengths, waited_for=2 * len(drafting) >= rows)
        for row, decision in chosen.items():
            self.finish(row, decision, *self.in_flight.get(row, (0, False)), used.get(row, 0))

    def asks(self, rows: int, row: int, decision: Decision) -> bool:
        """Whether a row waits for a proposal before this round."""
        missed = not self.in_flight.get(row, (0, False))[0]
        return decision.mode is Mode.SD or (rows == 1 and missed and decision.fallback is Fallback.JIT)

    def proposals(self, lengths: list[int]) -> float:
        """Seconds of drafting proposals of these lengths together."""
        if not lengths:
            return 0.0
        return self.round_trip + sum(self.draft_step(len(lengths), len(lengths)) for _ in range(max(lengths)))

    def tables(self, chosen: dict[int, Decision], lengths: dict[int, int], *, waited_for: bool) -> dict[int, int]:
        """What these rows use of their tables; waits for it if it is not at the target when its step ends.

        As in the simulator a table is sent when it is half as deep as wanted and when it is complete, the target uses
        what is there and waits for no more than the half, and the draft ends a pass before it heeds an outcome.
        """
        if not chosen:
            self.free = self.seconds + 0.5 * self.round_trip
            return {}
        on_its_way = 0.5 * self.round_trip
        heard = self.seconds + on_its_way
        least = {row: sent_first(decision.depth) for row, decision in chosen.items()}
        ends = self.passes(chosen, lengths, until=heard, least=max(least.values()))
        arrived = sum(end + on_its_way <= self.seconds for end in ends) - 1
        used = {row: one.depth if one.depth <= arrived else least[row] for row, one in chosen.items()}
        if waited_for:
            self.seconds = max(self.seconds, on_its_way + max(ends[depth] for depth in used.values()))
        self.free = max(heard, ends[-1]) if waited_for else heard
        return used

    def passes(self, chosen: dict[int, Decision], lengths: dict[int, int], *, until: float, least: int) -> list[float]:
        """When the draft has tables of depth 0, 1, ..: at least of this one, and then as many as it begins in time."""
        ends = [self.free + self.draft_step(len(chosen), sum(1 + lengths[row] for row in chosen))]
        deepest = max(decision.depth for decision in chosen.values())
        while len(ends) <= least or (len(ends) <= deepest and ends[-1] < until):
            growing = [decision.budget for decision in chosen.values() if decision.depth >= len(ends)]
            ends.append(ends[-1] + self.draft_step(len(growing), sum(growing)))
        return ends

    def finish(self, row: int, decision: Decision, length: int, after_hit: bool, next_length: int) -> None:
        accepted = 0
        while accepted < length and self.source.random() < self.truth.acceptance:
            accepted += 1
        self.tokens += accepted + 1
        if decision.mode is not Mode.SSD:
            self.statistics.observe(accepted, length, after_hit=after_hit)
            self.in_flight[row] = (0, False)
            return
        law = self.truth.outcome_law(length)
        fan_outs = greedy_allocation(law, self.truth.coverage_of(length), decision.budget)
        rank = self.truth.rank(accepted, length, self.source)
        hit = rank <= fan_outs[accepted]
        self.statistics.observe(accepted, length, rank if hit else None, listed=fan_outs[accepted], after_hit=after_hit)
        self.in_flight[row] = (next_length, True) if hit else (0, False)

    def draft_step(self, rows: int, tokens: int) -> float:
        return self.measured(self.draft, self.fits[1], rows, tokens)

    def measured(self, model: StepTime, fit: StepTimeFit, rows: int, tokens: int) -> float:
        seconds = model(rows, tokens) * self.source.uniform(0.97, 1.03)
        fit.observe(rows, tokens, seconds)
        return seconds


def best_fixed(world: World, rows: int, limits: Limits | None = None) -> tuple[float, Setting]:
    """The best fixed setting's tokens per second, by the closed forms with the true laws and times."""
    outlook = Outlook(world.truth, world.target, world.draft, Load(rows, world.round_trip))
    best = max(outlook.candidates(limits or Limits()), key=lambda one: one.tokens_per_s)
    return best.tokens_per_s, best.setting
