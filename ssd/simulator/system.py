"""Targets, drafts and what lies between them, put together and run."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ssd.simulator.draft import SimulatedDraft
from ssd.simulator.events import EventQueue
from ssd.simulator.messages import Answer, Anticipated, Closed, News
from ssd.simulator.policy import FixedPolicy, GovernedPolicy, Policy
from ssd.simulator.scenario import Scenario
from ssd.simulator.target import SimulatedTarget
from ssd.simulator.text import Text
from ssd.simulator.timing import StepTimer
from ssd.simulator.totals import Totals
from ssd.speculation.cache import SpeculationCache
from ssd.speculation.governor import Governor
from ssd.speculation.prediction import Load
from ssd.speculation.ranks import AcceptanceStatistics
from ssd.speculation.step_time import StepTime, StepTimeFit

# What the governor believes about step times before it has seen any: wrong by some factor, as in life.
TARGET_PRIOR = StepTime(0.010, 1e-5, 1e-5)
DRAFT_PRIOR = StepTime(0.002, 1e-6, 1e-6)
_PROMPT = 16  # length of a prompt that is not computed


@dataclass(frozen=True)
class Mark:
    """Totals at one moment."""

    seconds: float
    tokens: int
    rounds: int
    proposed: int
    accepted: int
    hits: int
    plain: int


class System:
    """One simulation; deterministic for a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.queue = EventQueue()
        self.totals = Totals()
        self.cache = SpeculationCache()
        self.statistics = AcceptanceStatistics()
        source = random.Random(scenario.seed)
        self.fits = StepTimeFit(TARGET_PRIOR), StepTimeFit(DRAFT_PRIOR)
        self.policies = [self._policy() for _ in range(scenario.targets)]
        self.targets = [self._target(policy, source) for policy in self.policies]
        self.drafts = [self._draft(source) for _ in range(scenario.drafts)]
        self._opened = 0
        self._where: dict[int, int] = {}
        scenario.arrivals.begin(self.queue, self, source)

    @property
    def live(self) -> int:
        """Sequences now being served."""
        return len(self._where)

    def open(self) -> None:
        """Begin a sequence."""
        sequence, scenario = self._opened, self.scenario
        self._opened += 1
        place = self._where[sequence] = sequence % scenario.targets
        text = Text(sequence, scenario.process, scenario.seed, scenario.ngram_acceptance)
        prompt = scenario.prompt_tokens
        self.targets[place].open(sequence, text, prompt or _PROMPT, scenario.new_tokens, prompt)

    def close_newest(self) -> None:
        """End the sequence that came last."""
        sequence = max(self._where)
        self.targets[self._where.pop(sequence)].close(sequence)

    def run_tokens(self, tokens: float) -> Mark:
        """Go on until so many tokens have been committed since the start."""
        while self.totals.tokens < tokens and self.queue.step():
            pass
        return self.mark()

    def run_seconds(self, seconds: float) -> Mark:
        """Go on until the clock shows so many seconds."""
        while self.queue.now < seconds and self.queue.step():
            pass
        return self.mark()

    def mark(self) -> Mark:
        totals = self.totals
        return Mark(
            self.queue.now, totals.tokens, totals.rounds, totals.proposed, totals.accepted, totals.hits, totals.plain
        )

    def _policy(self) -> Policy:
        scenario = self.scenario
        if scenario.setting is not None:
            return FixedPolicy(scenario.setting, self.statistics, scenario.fan_out)
        governor = Governor(*self.fits, scenario.limits)
        return GovernedPolicy(governor, self._load, self.statistics, scenario.ngram_acceptance)

    def _load(self, rows: int) -> Load:
        scenario = self.scenario
        # Rows of all targets that one draft serves, as far as one target's governor can know.
        drafted = -(-rows * scenario.targets // scenario.drafts) if scenario.drafts else 0
        return Load(rows, scenario.round_trip_s, drafted)

    def _target(self, policy: Policy, source: random.Random) -> SimulatedTarget:
        scenario = self.scenario
        timer = StepTimer(scenario.target, self._learning(0), scenario.jitter, source)
        return SimulatedTarget(
            self.queue, timer, self.cache, policy, self._to_drafts, self._ended, self.totals, scenario.proposal_wait_s
        )

    def _draft(self, source: random.Random) -> SimulatedDraft:
        scenario = self.scenario
        timer = StepTimer(scenario.draft, self._learning(1), scenario.jitter, source)
        # All policies of one system learn from the same statistics, so any of them can share out branches.
        return SimulatedDraft(self.queue, timer, self.policies[0].allocate, self._to_targets, scenario.rules)

    def _learning(self, which: int) -> StepTimeFit | None:
        """The fit that a timer feeds; nobody looks at it where the setting is fixed."""
        return self.fits[which] if self.scenario.setting is None else None

    def _ended(self, sequence: int) -> None:
        self._where.pop(sequence, None)
        self.scenario.arrivals.ended(self.queue, self)

    def _to_drafts(self, messages: list[News | Closed]) -> None:
        for number, draft in enumerate(self.drafts):
            mine = [message for message in messages if message.sequence % len(self.drafts) == number]
            if mine:
                self.queue.after(0.5 * self.scenario.round_trip_s, lambda d=draft, m=mine: d.receive(m))  # type: ignore[misc]

    def _to_targets(self, messages: list[Anticipated | Answer]) -> None:
        for number, target in enumerate(self.targets):
            mine = [message for message in messages if self._where.get(message.sequence) == number]
            if mine:
                self.queue.after(0.5 * self.scenario.round_trip_s, lambda t=target, m=mine: t.receive(m))  # type: ignore[misc]
