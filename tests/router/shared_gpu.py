"""A target and a draft that are slower side by side than each is alone, as seen by the governor of a lone sequence."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from protos.ssd.v1 import draft_pb2, target_pb2, types_pb2
from router.coordinator import Coordinator
from ssd.speculation.allocation import greedy_allocation
from ssd.speculation.prediction import Fallback, Mode, Setting, sent_first
from tests.router.coordination import outcome, plan
from tests.ssd.speculation.governed import TrueStatistics

NGRAM, JIT, TABLE = (
    types_pb2.PROPOSAL_SOURCE_NGRAM,
    types_pb2.PROPOSAL_SOURCE_JIT,
    types_pb2.PROPOSAL_SOURCE_TABLE,
)


@dataclass
class SharedGpu:
    """Rounds of one sequence of laws `truth`, under `fixed` or (None) mode AUTO. Prompt lookup finds nothing.

    A table is sent at half of its depth too, from a depth of 4. What is there at the end of the target's step is used,
    and no more than the half is waited for.

    alone_ms, beside_tables_ms   a step of the target beside which no table is made, and one beside which one is
    asked_ms, table_ms           a pass of the draft that the target waits for, and one beside a step of the target
    unseen_ms                    what passes besides until a table can be used, of which nobody is told
    """

    truth: TrueStatistics
    fixed: Setting | None = None
    alone_ms: float = 18.5
    beside_tables_ms: float = 21.1
    asked_ms: float = 1.3
    table_ms: float = 3.4
    unseen_ms: float = 0.0
    coordinator: Coordinator = field(default_factory=Coordinator)
    sequence: int = 0
    longest_wait_ms: float = 250.0  # of a target
    ms: float = 0.0
    tokens: int = 0
    waits: int = 0  # for proposals
    found: list[Setting] = field(default_factory=list)  # what was in force, round by round
    trials: list[str] = field(default_factory=list)  # their reasons, "" for a round that is none
    _next: tuple[int, int] = (0, types_pb2.PROPOSAL_SOURCE_UNSPECIFIED)  # length and source of what is in flight

    def __post_init__(self) -> None:
        self.source = random.Random(5)
        self.governing = self.coordinator.governing
        self.coordinator.target_ready("T", 16)
        self.coordinator.draft_ready("D", 16)
        self.begin()

    def begin(self, fallback: types_pb2.Fallback = types_pb2.FALLBACK_AUTO) -> None:
        """A new sequence, in place of the one before, whose request allows this fallback."""
        self.coordinator.close(self.sequence)
        self.sequence += 1
        wanted = plan(types_pb2.MODE_AUTO, max_tokens=1 << 30, k=8, fallback=fallback)
        self.coordinator.open(self.sequence, wanted)
        self.live = self.coordinator.of(self.sequence)
        self._next = (0, types_pb2.PROPOSAL_SOURCE_UNSPECIFIED)
        self.decide()

    def run(self, rounds: int) -> float:
        """Tokens per second."""
        ms, tokens = self.ms, self.tokens
        for _ in range(rounds):
            self.round()
        return 1000.0 * (self.tokens - tokens) / (self.ms - ms)

    def decide(self) -> None:
        """As it is done with each outcome."""
        if self.fixed is not None:
            self.found.append(self.fixed)
            return
        self.governing.decide(self.live, (1, 1))
        made = self.governing.decision(self.sequence)
        mode = Mode(types_pb2.Mode.Name(made.mode).removeprefix("MODE_").lower())
        fallback = Fallback(types_pb2.Fallback.Name(made.fallback).removeprefix("FALLBACK_").lower())
        self.found.append(Setting(mode, made.k, made.budget, made.depth, fallback))
        self.trials.append(made.reason if made.probe else "")

    def round(self) -> None:
        setting = self.found[-1]
        length, source = self._next
        if not length and (setting.mode is Mode.SD or setting.fallback is Fallback.JIT):
            length, source = self.proposal(setting.k), JIT
        tables = setting.mode is Mode.SSD
        step_ms = self.measured(self.beside_tables_ms if tables else self.alone_ms)
        accepted = 0
        while accepted < length and self.source.random() < self.truth.acceptance:
            accepted += 1
        listed, rank, depth = 0, 0, setting.depth
        if tables:
            made = greedy_allocation(self.truth.outcome_law(length), self.truth.coverage_of(length), setting.budget)
            listed, rank = made[accepted], self.truth.rank(accepted, length, self.source)
            depth, table_ms = self.table(setting, step_ms)
            self.ms += max(0.0, table_ms - step_ms)
        hit = tables and rank <= listed
        self.ms += step_ms
        self.tokens += accepted + 1
        self._next = (depth, TABLE) if hit else (0, types_pb2.PROPOSAL_SOURCE_UNSPECIFIED)
        self.governing.target_stepped(target_pb2.StepTiming(rows=1, tokens=1 + length, step_ms=step_ms))
        seen = outcome(3, [5] * (accepted + 1), proposed=length, accepted=accepted, source=source, hit=hit)
        self.governing.observe(self.live, seen, rank if hit else None, listed if tables else None)
        self.decide()

    def table(self, setting: Setting, step_ms: float) -> tuple[int, float]:
        """How deep a table is used beside a step, and what it took until then."""
        whole = self.unseen_ms + self.passes(1 + setting.depth, setting.budget, self.table_ms, asked=False)
        half = sent_first(setting.depth)
        if whole <= step_ms or half == setting.depth:
            return setting.depth, whole
        return half, self.unseen_ms + (whole - self.unseen_ms) * (1 + half) / (1 + setting.depth)

    def proposal(self, k: int) -> int:
        """Wait for one, and return its length: nothing if it comes too late."""
        self.waits += 1
        took = self.passes(k, 1, self.asked_ms, asked=True)
        self.ms += min(took, self.longest_wait_ms)
        return k if took <= self.longest_wait_ms else 0

    def passes(self, count: int, tokens: int, ms: float, *, asked: bool) -> float:
        """Milliseconds of so many passes behind one another, which are told of as one."""
        mean = self.measured(ms)
        self.governing.draft_stepped(draft_pb2.DraftTiming(rows=1, tokens=tokens, step_ms=mean, asked=asked))
        return count * mean

    def measured(self, ms: float) -> float:
        return ms * self.source.uniform(0.98, 1.02)


def fixed_settings() -> list[Setting]:
    """Those of which one is about the best for any sequence here."""
    sd = [Setting(Mode.SD, k) for k in (1, 2, 4, 6, 8)]
    ssd = [
        Setting(Mode.SSD, max(k, depth), budget, depth, fallback)
        for depth in (1, 3, 4, 5, 7)
        for budget in (16, 48)
        for fallback, k in ((Fallback.NONE, 4), (Fallback.JIT, 2), (Fallback.JIT, 5))
    ]
    return [Setting(), *sd, *ssd]
