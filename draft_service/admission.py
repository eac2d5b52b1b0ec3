"""Whether a sequence can be drafted for: every bad field has a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draft_service.sequence import Plan
from protos.ssd.v1 import draft_pb2, types_pb2
from ssd.errors import FieldError
from ssd.proto_convert import sampling_params, stop_rules
from ssd.speculation.fan_out import BudgetUniform, FanOut, UniformFanOut


@dataclass(frozen=True, slots=True)
class Limits:
    """What this draft can do for one sequence. Tokens everywhere."""

    vocab_size: int
    context: int  # prompt and output
    max_k: int
    max_branches: int
    eos_ids: tuple[int, ...]


def plan_of(message: draft_pb2.DraftOpen, limits: Limits) -> Plan:
    """The plan for a new sequence; FieldError names the first field that cannot be honoured.

    A proposal length above the draft's own is cut to it: a draft may always propose less than it is asked for.
    """
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
    if message.mode not in (types_pb2.MODE_SD, types_pb2.MODE_SSD):
        raise FieldError("mode", f"is {message.mode}, must be SD or SSD")
    if message.k < 1:
        raise FieldError("k", "must be at least 1")
    k, tables = min(message.k, limits.max_k), message.mode == types_pb2.MODE_SSD
    return Plan(
        params=params,
        rules=rules,
        prompt_len=message.prompt_len,
        k=k,
        fan_out=_fan_out(message.fan_out, k, limits.max_branches) if tables else UniformFanOut(0),
        tables=tables,
        end=min(limits.context, message.prompt_len + rules.limit),
    )


def check_ids(ids: Sequence[int], vocab_size: int) -> None:
    """FieldError for an id that this model does not know."""
    highest = max(ids, default=0)
    if highest >= vocab_size:
        raise FieldError("ids", f"token id {highest} is outside the draft's vocabulary of {vocab_size} tokens")


def _fan_out(fan_out: int, k: int, max_branches: int) -> FanOut:
    """How the branches of a table are shared out; every rule there is (see ssd.speculation.fan_out) is chosen here."""
    if fan_out < 1:
        raise FieldError("fan_out", "must be at least 1")
    if fan_out * (k + 1) > max_branches:
        return BudgetUniform(max_branches)
    return UniformFanOut(fan_out, k)
