"""A system to simulate: step times, a pair of models, delays, load, and how it is run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ssd.simulator.arrivals import Arrivals, ConstantRows
from ssd.simulator.draft import DraftRules
from ssd.simulator.text import RankProcess
from ssd.speculation.fan_out import FanOut
from ssd.speculation.prediction import Limits, Setting
from ssd.speculation.step_time import StepTime


@dataclass(frozen=True)
class Scenario:
    """Everything that a simulation depends on.

    target, draft    seconds of a forward pass
    process          how well the draft guesses the target
    round_trip_s     from an outcome at the target to the draft and back
    setting          how all rows are run; None = the governor decides
    limits           what the governor may choose
    fan_out          rule of a fixed setting's tables; None = measured, with the setting's budget
    targets, drafts  engines; sequences are dealt out to both in turn
    prompt_tokens    computed in the first step of a sequence; 0 = it starts with its prompt in the KV cache
    new_tokens       length of an answer
    jitter           relative unsteadiness of step times
    """

    target: StepTime
    draft: StepTime
    process: RankProcess
    round_trip_s: float = 0.0
    arrivals: Arrivals = field(default_factory=lambda: ConstantRows(1))
    setting: Setting | None = None
    limits: Limits = field(default_factory=Limits)
    fan_out: FanOut | None = None
    rules: DraftRules = field(default_factory=DraftRules)
    targets: int = 1
    drafts: int = 1
    prompt_tokens: int = 0
    new_tokens: float = math.inf
    jitter: float = 0.0
    proposal_wait_s: float = 0.25
    ngram_acceptance: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.targets < 1 or self.drafts < 0 or self.round_trip_s < 0.0 or not 0.0 <= self.jitter < 1.0:
            raise ValueError("a scenario has a target, no negative delay, and a jitter in [0, 1)")
        if self.prompt_tokens < 0 or self.new_tokens < 1:
            raise ValueError("a sequence has no negative prompt and at least one new token")
