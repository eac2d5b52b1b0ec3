"""Whether a sequence can be opened: every bad field has a name, and what can never fit is refused at once."""

from __future__ import annotations

from dataclasses import dataclass

from protos.ssd.v1 import target_pb2, types_pb2
from ssd.errors import FieldError
from ssd.proto_convert import sampling_params, stop_rules
from target_service.fallback import CHOICES
from target_service.sequence import Terms

_MODES = (types_pb2.MODE_AR, types_pb2.MODE_SD, types_pb2.MODE_SSD, types_pb2.MODE_AUTO)
_VERIFICATIONS = (
    types_pb2.VERIFICATION_UNSPECIFIED,
    types_pb2.VERIFICATION_COUPLED,
    types_pb2.VERIFICATION_REJECTION,
)


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
    return Terms(
        params=params,
        rules=rules,
        prompt_len=message.prompt_len,
        mode=_mode(message),
        k=_proposal_length(message, limits),
        rejection=_rejection(message),
        fallback=_fallback(message),
    )


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
    if message.mode not in _MODES:
        raise FieldError("mode", f"is {message.mode}, must be AR, SD, SSD or AUTO")
    return message.mode


def _rejection(message: target_pb2.TargetOpen) -> bool:
    if message.verification not in _VERIFICATIONS:
        raise FieldError("verification", f"is {message.verification}, must be COUPLED or REJECTION")
    return message.verification == types_pb2.VERIFICATION_REJECTION


def _fallback(message: target_pb2.TargetOpen) -> types_pb2.Fallback:
    """Unspecified: wait for the draft, if there is one."""
    if message.fallback == types_pb2.FALLBACK_UNSPECIFIED:
        return types_pb2.FALLBACK_JIT
    if message.fallback not in CHOICES:
        raise FieldError("fallback", f"is {message.fallback}, must be AUTO, JIT, NGRAM or NONE")
    return message.fallback


def _proposal_length(message: target_pb2.TargetOpen, limits: Limits) -> int:
    if message.mode == types_pb2.MODE_AR:
        return 0
    if not 1 <= message.k <= limits.max_k:
        raise FieldError("k", f"is {message.k}, must be 1..{limits.max_k}")
    return message.k
