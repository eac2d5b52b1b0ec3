"""Whether a sequence can be opened: every bad field has a name, and what can never fit is refused at once."""

from __future__ import annotations

from dataclasses import dataclass

from protos.ssd.v1 import target_pb2, types_pb2
from ssd.errors import FieldError
from ssd.proto_convert import sampling_params, stop_rules
from target_service.sequence import Terms


@dataclass(frozen=True, slots=True)
class Limits:
    """What this target can do for one sequence. Tokens everywhere."""

    vocab_size: int
    context: int  # prompt and output
    kv_tokens: int
    max_k: int
    eos_ids: tuple[int, ...]


def terms_of(message: target_pb2.TargetOpen, limits: Limits) -> Terms:
    """The terms of a new sequence; FieldError names the first field that cannot be honoured."""
    _check_ids(message, limits)
    rules = stop_rules(
        message.limits,
        eos_ids=limits.eos_ids,
        vocab_size=limits.vocab_size,
        prompt_len=message.prompt_len,
        max_len=limits.context,
    )
    _check_room(message, limits)
    if not message.sampling.HasField("seed"):
        raise FieldError("seed", "must be set: the target draws none of its own")
    params = sampling_params(
        message.sampling, vocab_size=limits.vocab_size, logprobs=message.logprobs, min_tokens=rules.min_tokens
    )
    return Terms(params, rules, message.prompt_len, _mode(message), _proposal_length(message, limits))


def _check_ids(message: target_pb2.TargetOpen, limits: Limits) -> None:
    if not message.ids:
        raise FieldError("token_ids", "must not be empty")
    if not 1 <= message.prompt_len <= len(message.ids):
        raise FieldError("prompt_len", f"is {message.prompt_len}, must be 1..{len(message.ids)}, the number of ids")
    highest = max(message.ids)
    if highest >= limits.vocab_size:
        raise FieldError("token_ids", f"token id {highest} is outside the vocabulary of {limits.vocab_size} tokens")


def _check_room(message: target_pb2.TargetOpen, limits: Limits) -> None:
    prompt, output = message.prompt_len, message.limits.max_tokens
    for room, what in ((limits.context, "the context length"), (limits.kv_tokens, "the KV room of this target")):
        if prompt >= room:
            raise FieldError("token_ids", f"{prompt} prompt tokens leave no room for output within {what} of {room}")
        if prompt + output > room:
            raise FieldError("max_tokens", f"{prompt} prompt + {output} output tokens are more than {what} of {room}")
    if len(message.ids) - prompt >= output:
        raise FieldError("max_tokens", f"is {output}, and as many output tokens are there already")


def _mode(message: target_pb2.TargetOpen) -> types_pb2.Mode:
    if message.mode not in (types_pb2.MODE_AR, types_pb2.MODE_SD, types_pb2.MODE_SSD):
        raise FieldError("mode", f"is {message.mode}, must be AR, SD or SSD")
    return message.mode


def _proposal_length(message: target_pb2.TargetOpen, limits: Limits) -> int:
    if message.mode == types_pb2.MODE_AR:
        return 0
    if not 1 <= message.k <= limits.max_k:
        raise FieldError("k", f"is {message.k}, must be 1..{limits.max_k}")
    return message.k
