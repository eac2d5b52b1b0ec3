"""A client's request, held against what this server can do. Every refusal names the field and its status.

Paths of fields are those of the request message (`sampling.temperature`).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from protos.ssd.v1 import inference_pb2, types_pb2
from router import speculation
from router.plan import Plan
from ssd.config import RouterConfig
from ssd.errors import FieldError
from ssd.proto_convert import sampling_params
from ssd.rpc.status import ApiError, invalid, unimplemented
from ssd.speculation.params import MAX_LOGPROBS

MAX_REQUEST_ID = 128  # characters
MAX_STOP_TEXTS = 16
MAX_STOP_TEXT = 1024  # characters
MAX_STOP_IDS = 64
SEED_BITS = 64

_NOT_YET = ("json_schema", "regex", "grammar")


@dataclass(frozen=True)
class Limits:
    """What every connected target can take."""

    vocab_size: int
    context: int  # most tokens of prompt and output
    max_k: int
    max_branches: int = 64  # of one table; what the drafts connected now can take

    @property
    def longest_prompt(self) -> int:
        """Leaves room for one token of output."""
        return self.context - 1


@dataclass(frozen=True)
class Checked:
    """Everything of a valid request but its prompt."""

    sampling: types_pb2.SamplingParameters
    stop: inference_pb2.StopParameters
    logprobs: int
    special_tokens: bool
    speculation: speculation.Speculation
    time_limit_s: float | None
    default_max_tokens: int
    limits: Limits

    def plan(self, prompt: Sequence[int], field: str) -> Plan:
        """The generation from `prompt`, the ids of the input `field`. Raises ApiError where it cannot fit."""
        if not prompt:
            raise invalid(field, "must not be empty")
        room = self.limits.context - len(prompt)
        if room < 1:
            most = self.limits.longest_prompt
            raise invalid(field, f"the prompt has {len(prompt)} tokens; at most {most} leave room for one of output")
        max_tokens = min(self.default_max_tokens, room)
        if self.stop.HasField("max_tokens"):
            max_tokens = self.stop.max_tokens
            if max_tokens > room:
                raise invalid(
                    "stop.max_tokens",
                    f"is {max_tokens}, but a prompt of {len(prompt)} tokens leaves {room} of {self.limits.context}",
                )
        if self.stop.min_tokens > max_tokens:
            raise invalid("stop.min_tokens", f"is {self.stop.min_tokens}, above max_tokens = {max_tokens}")
        limits = types_pb2.TokenLimits(
            max_tokens=max_tokens,
            min_tokens=self.stop.min_tokens,
            ignore_eos=self.stop.ignore_eos,
            stop_ids=self.stop.token_ids,
        )
        chosen = self.speculation
        return Plan(
            prompt=prompt,
            sampling=self.sampling,
            limits=limits,
            logprobs=self.logprobs,
            mode=chosen.mode,
            k=chosen.k,
            fan_out=chosen.fan_out,
            verification=chosen.verification,
            saguaro_c=chosen.saguaro_c,
            fallback=chosen.fallback,
            drafts=chosen.drafts,
            max_budget=chosen.max_budget,
        )


def check(request: inference_pb2.GenerateRequest, config: RouterConfig, limits: Limits) -> Checked:
    """Everything that can be said without tokenizing. Raises ApiError."""
    if len(request.request_id) > MAX_REQUEST_ID:
        raise invalid("request_id", f"has {len(request.request_id)} characters, at most {MAX_REQUEST_ID}")
    if request.WhichOneof("input") is None:
        raise invalid("input", "one of text, chat and token_ids is needed")
    if request.WhichOneof("input") == "token_ids":
        check_ids("token_ids", request.token_ids.ids, limits.vocab_size)
    _check_count(request)
    sampling = _sampling(request.sampling, limits.vocab_size)
    _check_stop(request.stop, limits.vocab_size)
    logprobs = _logprobs(request.output)
    chosen = speculation.check(request.speculation, config, limits.max_k, limits.max_branches)
    time_limit_s = request.time_limit_s if request.HasField("time_limit_s") else None
    if time_limit_s is not None and not (math.isfinite(time_limit_s) and time_limit_s > 0):
        raise invalid("time_limit_s", f"is {time_limit_s}, must be a positive number of seconds")
    return Checked(
        sampling=sampling,
        stop=request.stop,
        logprobs=logprobs,
        special_tokens=request.output.special_tokens,
        speculation=chosen,
        time_limit_s=time_limit_s,
        default_max_tokens=config.max_tokens,
        limits=limits,
    )


def check_model(name: str, served: str) -> None:
    """NOT_FOUND unless `name` is empty or the model that is served."""
    if name and name != served:
        raise ApiError(grpc.StatusCode.NOT_FOUND, f"model: {name!r} is not served here; {served!r} is")


def check_ids(field: str, ids: Sequence[int], vocab_size: int) -> None:
    """INVALID_ARGUMENT for the first id outside the vocabulary."""
    if ids and max(ids) >= vocab_size:
        index = next(index for index, token_id in enumerate(ids) if token_id >= vocab_size)
        raise invalid(field, f"id {ids[index]} at index {index} is outside the vocabulary of {vocab_size} tokens")


def _check_count(request: inference_pb2.GenerateRequest) -> None:
    if request.HasField("n") and request.n < 1:
        raise invalid("n", "must be at least 1")
    if request.n > 1:
        raise unimplemented("n", f"is {request.n}, only 1 is supported; send several requests with seeds of their own")


def _sampling(message: types_pb2.SamplingParameters, vocab_size: int) -> types_pb2.SamplingParameters:
    """A checked copy with the seed set."""
    try:
        sampling_params(message, vocab_size=vocab_size)
    except FieldError as error:
        raise invalid(f"sampling.{error.field}", error.message) from error
    sampling = types_pb2.SamplingParameters()
    sampling.CopyFrom(message)
    if not sampling.HasField("seed"):
        sampling.seed = secrets.randbits(SEED_BITS)
    return sampling


def _check_stop(stop: inference_pb2.StopParameters, vocab_size: int) -> None:
    if stop.HasField("max_tokens") and stop.max_tokens < 1:
        raise invalid("stop.max_tokens", "must be at least 1")
    if len(stop.texts) > MAX_STOP_TEXTS:
        raise invalid("stop.texts", f"has {len(stop.texts)} entries, at most {MAX_STOP_TEXTS}")
    for index, text in enumerate(stop.texts):
        if not 1 <= len(text) <= MAX_STOP_TEXT:
            raise invalid(f"stop.texts[{index}]", f"has {len(text)} characters, must have 1 to {MAX_STOP_TEXT}")
    if len(stop.token_ids) > MAX_STOP_IDS:
        raise invalid("stop.token_ids", f"has {len(stop.token_ids)} entries, at most {MAX_STOP_IDS}")
    check_ids("stop.token_ids", stop.token_ids, vocab_size)


def _logprobs(output: inference_pb2.OutputParameters) -> int:
    if output.HasField("prompt_logprobs"):
        raise unimplemented("output.prompt_logprobs", "not supported yet")
    for name in _NOT_YET:
        if getattr(output, name):
            raise unimplemented(f"output.{name}", "structured output is not supported yet")
    if not output.HasField("logprobs"):
        return -1
    if output.logprobs > MAX_LOGPROBS:
        raise invalid("output.logprobs", f"is {output.logprobs}, at most {MAX_LOGPROBS}")
    return output.logprobs
