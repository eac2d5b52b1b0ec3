"""What is asked of the draft for one sequence: terms that stay, and a policy that the governor may change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from ssd.speculation.fan_out import FanOut
from ssd.speculation.finish import StopRules
from ssd.speculation.sampling import SamplingParams


@dataclass(frozen=True)
class Terms:
    """What a sequence was opened with.

    rejection   proposals are drawn from the draft's own law, which goes with them; else they are coupled draws
    scale       C of Saguaro sampling, for rejection: 1 = the law as it is
    end         no token at this position or later is worth drafting (the request's limit, or the draft's context)
    """

    params: SamplingParams
    rules: StopRules
    prompt_len: int
    end: int
    rejection: bool = False
    scale: float = 1.0

    @cached_property
    def ranking(self) -> SamplingParams:
        """Parameters that rank outcomes: the draft knows the noise of coupled draws, and none of any other."""
        return replace(self.params, temperature=0.0) if self.rejection else self.params


@dataclass(frozen=True)
class Policy:
    """How the next rounds are drafted.

    k             longest proposal that is made just in time
    depth         longest proposal behind a branch
    tables        outcomes are anticipated
    idle          nothing is done at all: the target decodes plainly, and the ids are kept up with
    part, parts   `parts` drafts share the candidates, and this one takes every parts-th of them from its part-th on
    """

    k: int
    depth: int
    fan_out: FanOut
    tables: bool
    idle: bool = False
    part: int = 0
    parts: int = 1

    @property
    def publish_at(self) -> frozenset[int]:
        """Depths at which a table is sent before it is finished."""
        return published_at(self.depth)


def published_at(last: int) -> frozenset[int]:
    """Depths at which a table that is finished at `last` is sent before: half a proposal in time beats a whole one too
    late. At its half, at half of that, and so on down to two tokens, but not a step before the next time, since a
    message more would gain next to nothing."""
    found: list[int] = []
    depth = last
    while 2 <= (half := -(-depth // 2)) < depth - 1:
        found.append(half)
        depth = half
    return frozenset(found)
