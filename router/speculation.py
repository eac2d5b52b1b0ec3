"""The SpeculationParameters of a request, held against what this server can do. Nothing in them is silently ignored."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from protos.ssd.v1 import inference_pb2, types_pb2
from router.plan import uniform
from ssd.config import MAX_DRAFTS, RouterConfig
from ssd.rpc.status import invalid

Parameters = inference_pb2.SpeculationParameters

_RULE = "speculation.fan_out_rule"
# Which fields of a FanOut mean something under a rule.
_FIELDS = {
    types_pb2.FAN_OUT_RULE_UNIFORM: {"fan_out"},
    types_pb2.FAN_OUT_RULE_EXPLICIT: {"after_hit", "after_miss"},
    types_pb2.FAN_OUT_RULE_GEOMETRIC: {"budget", "acceptance", "exponent"},
    types_pb2.FAN_OUT_RULE_MEASURED: {"budget"},
}


@dataclass(frozen=True)
class Speculation:
    """Resolved parameters; router.plan.Plan says what each one means."""

    mode: types_pb2.Mode
    k: int
    fan_out: types_pb2.FanOut
    verification: types_pb2.Verification
    saguaro_c: float
    fallback: types_pb2.Fallback
    drafts: int
    max_budget: int


def check(message: Parameters, config: RouterConfig, max_k: int, max_branches: int) -> Speculation:
    """max_k: of the targets; max_branches: of the drafts. Raises ApiError (INVALID_ARGUMENT) naming the field."""
    mode = _choice(message, "mode", types_pb2.Mode, config.mode)
    governed = mode == types_pb2.MODE_AUTO
    k = message.k if message.HasField("k") else min(config.auto_k if governed else config.k, max_k)
    if not 1 <= k <= max_k:
        raise invalid("speculation.k", f"is {k}, must be in 1..{max_k}")
    verification = _choice(message, "verification", types_pb2.Verification, config.verification)
    fallback = _choice(message, "fallback", types_pb2.Fallback, config.fallback)
    if mode == types_pb2.MODE_SD and not message.fallback:
        fallback = types_pb2.FALLBACK_JIT  # that is what SD means; other fallbacks have to be asked for
    drafts = message.drafts if message.HasField("drafts") else config.drafts_per_sequence
    if not 1 <= drafts <= MAX_DRAFTS:
        raise invalid("speculation.drafts", f"is {drafts}, must be in 1..{MAX_DRAFTS}")
    if governed:
        _check_governed(message)
    bounded = governed and message.fan_out_rule.HasField("budget")
    fan_out = _fan_out(message, config, _rule(message, config, governed), k, max_branches)
    return Speculation(
        mode=mode,
        k=k,
        fan_out=fan_out,
        verification=verification,
        saguaro_c=_saguaro_c(message, config, verification),
        fallback=fallback,
        drafts=drafts,
        max_budget=fan_out.budget if bounded else min(config.auto_budget, max_branches),
    )


def defaults(config: RouterConfig, max_k: int, max_branches: int) -> Parameters:
    """What a request that names nothing gets."""
    found = check(Parameters(), config, max_k, max_branches)
    message = Parameters(
        mode=found.mode, k=found.k, verification=found.verification, fallback=found.fallback, drafts=found.drafts
    )
    if found.verification == types_pb2.VERIFICATION_REJECTION:
        message.saguaro_c = found.saguaro_c
    if found.mode == types_pb2.MODE_AUTO:
        message.fan_out_rule.budget = found.max_budget
    elif found.fan_out.rule == types_pb2.FAN_OUT_RULE_UNIFORM:
        message.fan_out = found.fan_out.fan_out
    else:
        message.fan_out_rule.CopyFrom(found.fan_out)
    return message


def _choice(message: Parameters, name: str, kind: Any, default: str) -> Any:
    """A value of the enum `kind`; the server's default where it is unspecified."""
    value = getattr(message, name)
    if value not in kind.values():
        raise invalid(f"speculation.{name}", f"has no value {value}")
    return value or kind.Value(f"{name.upper()}_{default.upper()}")


def _saguaro_c(message: Parameters, config: RouterConfig, verification: int) -> float:
    rejection = verification == types_pb2.VERIFICATION_REJECTION
    if not message.HasField("saguaro_c"):
        return config.saguaro_c if rejection else 1.0
    if not 0.0 <= message.saguaro_c <= 1.0:
        raise invalid("speculation.saguaro_c", f"is {message.saguaro_c}, must be in 0..1")
    if not rejection:
        raise invalid("speculation.saguaro_c", "is for verification REJECTION only")
    return message.saguaro_c


def _check_governed(message: Parameters) -> None:
    """The governor shares the branches out by itself; a request can only bound how many there are."""
    if message.HasField("fan_out"):
        raise invalid("speculation.fan_out", "is chosen by the governor in mode AUTO")
    if message.fan_out_rule.rule not in (types_pb2.FAN_OUT_RULE_UNSPECIFIED, types_pb2.FAN_OUT_RULE_MEASURED):
        raise invalid(f"{_RULE}.rule", "must be MEASURED in mode AUTO: the governor shares out the branches")


def _fan_out(
    message: Parameters, config: RouterConfig, rule: types_pb2.FanOutRule, k: int, max_branches: int
) -> types_pb2.FanOut:
    if message.HasField("fan_out"):
        if message.HasField("fan_out_rule"):
            raise invalid(_RULE, "cannot be given together with speculation.fan_out")
        return _uniform("speculation.fan_out", message.fan_out, config)
    given = message.fan_out_rule
    for field, _ in given.ListFields():
        if field.name not in {"rule", *_FIELDS[rule]}:
            name = types_pb2.FanOutRule.Name(rule).removeprefix("FAN_OUT_RULE_")
            raise invalid(f"{_RULE}.{field.name}", f"means nothing under the rule {name}")
    if rule == types_pb2.FAN_OUT_RULE_UNIFORM:
        fan_out = given.fan_out if given.HasField("fan_out") else config.fan_out
        return _uniform(f"{_RULE}.fan_out", fan_out, config)
    if rule == types_pb2.FAN_OUT_RULE_EXPLICIT:
        return _explicit(given, k, max_branches)
    budget = given.budget if given.HasField("budget") else min(config.budget, max_branches)
    if not 1 <= budget <= max_branches:
        raise invalid(f"{_RULE}.budget", f"is {budget}, must be in 1..{max_branches}")
    resolved = types_pb2.FanOut(rule=rule, budget=budget)
    if rule == types_pb2.FAN_OUT_RULE_GEOMETRIC:
        resolved.acceptance = given.acceptance if given.HasField("acceptance") else config.fan_out_acceptance
        resolved.exponent = given.exponent if given.HasField("exponent") else config.fan_out_exponent
        if not 0.0 <= resolved.acceptance <= 1.0:
            raise invalid(f"{_RULE}.acceptance", f"is {resolved.acceptance}, must be in 0..1")
        if not 0.0 < resolved.exponent < math.inf:
            raise invalid(f"{_RULE}.exponent", f"is {resolved.exponent}, must be positive and finite")
    return resolved


def _rule(message: Parameters, config: RouterConfig, governed: bool) -> types_pb2.FanOutRule:
    rule: Any = message.fan_out_rule.rule
    if rule not in types_pb2.FanOutRule.values():
        raise invalid(f"{_RULE}.rule", f"has no value {rule}")
    if rule:
        return rule
    if governed and message.fan_out_rule.HasField("budget"):
        return types_pb2.FAN_OUT_RULE_MEASURED
    default: Any = types_pb2.FanOutRule.Value(f"FAN_OUT_RULE_{config.fan_out_rule.upper()}")
    return default


def _uniform(field: str, fan_out: int, config: RouterConfig) -> types_pb2.FanOut:
    if not 1 <= fan_out <= config.max_fan_out:
        raise invalid(field, f"is {fan_out}, must be in 1..{config.max_fan_out}")
    return uniform(fan_out)


def _explicit(given: types_pb2.FanOut, k: int, max_branches: int) -> types_pb2.FanOut:
    for name in ("after_hit", "after_miss"):
        numbers = getattr(given, name)
        field = f"{_RULE}.{name}"
        if not numbers:
            if name == "after_hit":
                raise invalid(field, "is needed under the rule EXPLICIT")
            continue
        if len(numbers) > k + 1:
            raise invalid(field, f"has {len(numbers)} numbers, at most k + 1 = {k + 1}")
        if not 1 <= sum(numbers) <= max_branches:
            raise invalid(field, f"adds up to {sum(numbers)} branches, must be in 1..{max_branches}")
    return given
