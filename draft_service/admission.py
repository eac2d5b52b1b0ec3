"""Whether a sequence can be drafted for, and how: every bad field has a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from draft_service.rules import fan_out_rule, planned_fan_out
from draft_service.terms import Policy, Terms
from protos.ssd.v1 import draft_pb2, types_pb2
from ssd.errors import FieldError
from ssd.proto_convert import sampling_params, stop_rules
from ssd.speculation.fan_out import UniformFanOut
from ssd.speculation.ranks import AcceptanceStatistics

_MODES = (types_pb2.MODE_SD, types_pb2.MODE_SSD, types_pb2.MODE_AUTO)
MAX_PARTS = 64
"""More drafts on one sequence would only make the lists of candidates long."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What this draft can do for one sequence. Tokens everywhere."""

    vocab_size: int
    context: int  # prompt and output
    max_k: int
    max_branches: int
    eos_ids: tuple[int, ...]


def terms_of(message: draft_pb2.DraftOpen, limits: Limits) -> Terms:
    """The terms of a new sequence; FieldError names the first field that cannot be honoured."""
    if not message.ids:
        raise FieldError("ids", "must not be empty")
    if not 1 <= message.prompt_len <= len(message.ids):
        raise FieldError("prompt_len", f"is {message.prompt_len}, must be 1..{len(message.ids)}, the number of ids")
    check_ids(message.ids, limits.vocab_size)
    rules = stop_rules(
        message.limits, eos_ids=limits.eos_ids, vocab_size=limits.vocab_size, prompt_len=message.prompt_len
    )
    if not message.sampling.HasField("seed"):
        raise FieldError("seed", "must be set: the draft anticipates the target's own draws")
    params = sampling_params(message.sampling, vocab_size=limits.vocab_size, min_tokens=rules.min_tokens)
    rejection = message.verification == types_pb2.VERIFICATION_REJECTION
    if rejection and not 0.0 <= message.saguaro_c <= 1.0:
        raise FieldError("saguaro_c", f"is {message.saguaro_c}, must be in 0..1")
    return Terms(
        params=params,
        rules=rules,
        prompt_len=message.prompt_len,
        end=min(limits.context, message.prompt_len + rules.limit),
        rejection=rejection,
        scale=message.saguaro_c if rejection else 1.0,
    )


def policy_of(message: draft_pb2.DraftOpen, limits: Limits, statistics: AcceptanceStatistics) -> Policy:
    """How a new sequence is drafted for; FieldError as in `terms_of`.

    A proposal length above the draft's own is cut to it: a draft may always propose less than it is asked for.
    """
    if message.mode not in _MODES:
        raise FieldError("mode", f"is {message.mode}, must be SD, SSD or AUTO")
    if message.k < 1:
        raise FieldError("k", "must be at least 1")
    k, tables = min(message.k, limits.max_k), message.mode != types_pb2.MODE_SD
    named = tables or message.HasField("fan_out")
    rule = fan_out_rule(message.fan_out, k, limits.max_branches, statistics) if named else UniformFanOut(0)
    part, parts = parts_of(message.part, message.parts)
    return Policy(k=k, depth=k, fan_out=rule, tables=tables, part=part, parts=parts)


def planned_policy(
    opened: Policy, now: Policy, plan: draft_pb2.DraftPlan, limits: Limits, statistics: AcceptanceStatistics
) -> Policy:
    """The policy under the governor's plan; what the plan leaves open is as it was `opened`."""
    k = min(plan.k or opened.k, limits.max_k)
    fan_outs = plan.fan_out
    return replace(
        now,
        k=k,
        depth=min(plan.depth or k, limits.max_k),
        fan_out=planned_fan_out(fan_outs, limits.max_branches, statistics) if fan_outs else opened.fan_out,
        tables=plan.mode not in (types_pb2.MODE_AR, types_pb2.MODE_SD),
        idle=plan.mode == types_pb2.MODE_AR,
    )


def parts_of(part: int, parts: int) -> tuple[int, int]:
    """(part, parts), 0 parts being one; FieldError for a part that there is not."""
    parts = parts or 1
    if parts > MAX_PARTS:
        raise FieldError("parts", f"is {parts}, must be at most {MAX_PARTS}")
    if part >= parts:
        raise FieldError("part", f"is {part}, must be below parts = {parts}")
    return part, parts


def check_ids(ids: Sequence[int], vocab_size: int) -> None:
    """FieldError for an id that this model does not know."""
    highest = max(ids, default=0)
    if highest >= vocab_size:
        raise FieldError("ids", f"token id {highest} is outside the draft's vocabulary of {vocab_size} tokens")
