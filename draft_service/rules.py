"""Fan-out rules of sequences: those of the core, kept within what the process allows, and the governor's lists."""

from __future__ import annotations

from collections.abc import Sequence

from protos.ssd.v1 import types_pb2
from ssd.errors import FieldError
from ssd.speculation.fan_out import (
    BudgetUniform,
    ExplicitFanOut,
    FanOut,
    GeometricFanOut,
    MeasuredFanOut,
    UniformFanOut,
)
from ssd.speculation.ranks import AcceptanceStatistics

DEFAULT_ACCEPTANCE = 0.8
DEFAULT_EXPONENT = 1.0
REFRESH_ROUNDS = 4
"""Statistics change with every round of every sequence, and what is best by them hardly at all."""


def fan_out_rule(message: types_pb2.FanOut, k: int, max_branches: int, statistics: AcceptanceStatistics) -> FanOut:
    """The rule that `message` describes, for proposals of k tokens; FieldError names what is wrong with it."""
    budget = min(message.budget, max_branches)
    match message.rule:
        case types_pb2.FAN_OUT_RULE_UNIFORM:
            _at_least_one("fan_out.fan_out", message.fan_out)
            if message.fan_out * (k + 1) > max_branches:
                return BudgetUniform(max_branches)
            return Capped(UniformFanOut(message.fan_out, k), max_branches)
        case types_pb2.FAN_OUT_RULE_EXPLICIT:
            _at_least_one("fan_out.after_hit", sum(message.after_hit))
            return Capped(ExplicitFanOut(tuple(message.after_hit), tuple(message.after_miss)), max_branches)
        case types_pb2.FAN_OUT_RULE_GEOMETRIC:
            _at_least_one("fan_out.budget", budget)
            return _geometric(message, budget)
        case types_pb2.FAN_OUT_RULE_MEASURED:
            _at_least_one("fan_out.budget", budget)
            return Refreshed(MeasuredFanOut(statistics, budget), REFRESH_ROUNDS)
    raise FieldError("fan_out.rule", f"is {message.rule}, must be UNIFORM, EXPLICIT, GEOMETRIC or MEASURED")


def planned_fan_out(fan_outs: Sequence[int], max_branches: int, statistics: AcceptanceStatistics) -> FanOut:
    """The governor's F_0..F_depth."""
    others = MeasuredFanOut(statistics, min(sum(fan_outs), max_branches))
    return Capped(PlannedFanOut(tuple(fan_outs), Refreshed(others, REFRESH_ROUNDS)), max_branches)


class PlannedFanOut:
    """A list for proposals of the length that it is made for, and another rule for all other lengths."""

    def __init__(self, fan_outs: tuple[int, ...], others: FanOut) -> None:
        self.fan_outs = fan_outs
        self._others = others

    def allocate(self, depth_in_flight: int, after_hit: bool = True) -> tuple[int, ...]:
        """See ssd.speculation.fan_out.FanOut."""
        if len(self.fan_outs) == depth_in_flight + 1:
            return self.fan_outs
        return self._others.allocate(depth_in_flight, after_hit)


class Refreshed:
    """A rule that costs something to ask: each answer is good for a number of rounds."""

    def __init__(self, rule: FanOut, rounds: int) -> None:
        self.rule = rule
        self._rounds = rounds
        self._known: dict[tuple[int, bool], tuple[int, tuple[int, ...]]] = {}

    def allocate(self, depth_in_flight: int, after_hit: bool = True) -> tuple[int, ...]:
        """See ssd.speculation.fan_out.FanOut."""
        key = (depth_in_flight, after_hit)
        left, fan_outs = self._known.get(key, (0, ()))
        if left == 0:
            left, fan_outs = self._rounds, self.rule.allocate(depth_in_flight, after_hit)
        self._known[key] = (left - 1, fan_outs)
        return fan_outs


class Capped:
    """A rule within `most` branches: an allocation beyond that shrinks in proportion."""

    def __init__(self, rule: FanOut, most: int) -> None:
        self.rule = rule
        self.most = most

    def allocate(self, depth_in_flight: int, after_hit: bool = True) -> tuple[int, ...]:
        """See ssd.speculation.fan_out.FanOut. What rounding leaves over goes to the largest remainders."""
        wanted = self.rule.allocate(depth_in_flight, after_hit)
        total = sum(wanted)
        if total <= self.most:
            return wanted
        shares = [count * self.most // total for count in wanted]
        left = self.most - sum(shares)
        by_remainder = sorted(range(len(wanted)), key=lambda k: (-(wanted[k] * self.most % total), k))
        favoured = frozenset(by_remainder[:left])
        return tuple(share + (k in favoured) for k, share in enumerate(shares))


def _geometric(message: types_pb2.FanOut, budget: int) -> FanOut:
    acceptance = message.acceptance if message.HasField("acceptance") else DEFAULT_ACCEPTANCE
    exponent = message.exponent if message.HasField("exponent") else DEFAULT_EXPONENT
    if not 0.0 <= acceptance <= 1.0:
        raise FieldError("fan_out.acceptance", f"is {acceptance}, must be in 0..1")
    if not 0.0 < exponent < float("inf"):
        raise FieldError("fan_out.exponent", f"is {exponent}, must be positive and finite")
    return GeometricFanOut(acceptance, exponent, budget)


def _at_least_one(field: str, value: int) -> None:
    if value < 1:
        raise FieldError(field, "must be at least 1")
