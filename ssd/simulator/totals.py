"""What is counted during a simulation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ssd.speculation.governor import Decision
from ssd.speculation.prediction import Mode


@dataclass
class Totals:
    """Rounds are those of single rows.

    hits       rounds that verified a proposal from a table
    plain      rounds without a proposal
    modes      rounds by the mode of the decision in force, trials of the governor apart
    """

    tokens: int = 0
    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    hits: int = 0
    plain: int = 0
    trials: int = 0
    modes: Counter[Mode] = field(default_factory=Counter)

    def round(self, accepted: int, depth: int, after_hit: bool, decision: Decision) -> None:
        self.tokens += accepted + 1
        self.rounds += 1
        self.proposed += depth
        self.accepted += accepted
        self.hits += after_hit and depth > 0
        self.plain += depth == 0
        self.trials += decision.probe
        if not decision.probe:
            self.modes[decision.mode] += 1
