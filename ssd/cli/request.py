"""From command-line options to a GenerateRequest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from protos.ssd.v1 import inference_pb2, types_pb2
from ssd.cli.errors import BAD_INPUT, CliError
from ssd.config import ANY_MODE, FALLBACKS, FAN_OUT_RULES, VERIFICATIONS
from ssd.errors import FieldError


@dataclass(frozen=True)
class GenerateOptions:
    """Everything but the input; None = the server's default. The server judges the values."""

    mode: str | None = None
    k: int | None = None
    fan_out: int | None = None
    fan_out_rule: str | None = None
    budget: int | None = None
    verification: str | None = None
    saguaro_c: float | None = None
    fallback: str | None = None
    drafts: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


_NATURAL = ("k", "fan_out", "budget", "drafts", "seed", "max_tokens", "min_tokens")

Messages = Sequence[tuple[str, str]]
"""(role, content) pairs."""


def build_request(prompt: str | Messages, options: GenerateOptions) -> inference_pb2.GenerateRequest:
    """A request for raw text or for chat messages.

    Raises FieldError for a mode or the like that is none and for a number that no request can hold, CliError for text
    that is none.
    """
    _check_numbers(options)
    try:
        request = inference_pb2.GenerateRequest(
            sampling=types_pb2.SamplingParameters(
                temperature=options.temperature,
                top_p=options.top_p,
                top_k=options.top_k,
                min_p=options.min_p,
                repetition_penalty=options.repetition_penalty,
                presence_penalty=options.presence_penalty,
                frequency_penalty=options.frequency_penalty,
                seed=options.seed,
            ),
            stop=inference_pb2.StopParameters(
                max_tokens=options.max_tokens,
                min_tokens=options.min_tokens or 0,
                texts=options.stop,
                ignore_eos=options.ignore_eos,
            ),
            speculation=_speculation(options),
        )
    except UnicodeEncodeError:
        raise CliError("--stop: is not valid UTF-8", BAD_INPUT) from None
    _check_text(prompt if isinstance(prompt, str) else "".join(content for _, content in prompt))
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.chat.messages.extend(inference_pb2.ChatMessage(role=role, content=content) for role, content in prompt)
    return request


def _speculation(options: GenerateOptions) -> inference_pb2.SpeculationParameters:
    message = inference_pb2.SpeculationParameters(
        mode=_choice("mode", options.mode, ANY_MODE, types_pb2.Mode),
        k=options.k,
        verification=_choice("verification", options.verification, VERIFICATIONS, types_pb2.Verification),
        saguaro_c=options.saguaro_c,
        fallback=_choice("fallback", options.fallback, FALLBACKS, types_pb2.Fallback),
        drafts=options.drafts,
    )
    rule = options.fan_out_rule or ("measured" if options.budget is not None else None)
    if rule is None:
        if options.fan_out is not None:
            message.fan_out = options.fan_out
        return message
    number = _choice("fan_out_rule", rule, FAN_OUT_RULES, types_pb2.FanOutRule)
    message.fan_out_rule.CopyFrom(types_pb2.FanOut(rule=number, fan_out=options.fan_out, budget=options.budget))
    return message


def _choice(name: str, given: str | None, allowed: Sequence[str], kind: Any) -> Any:
    """A value of the enum `kind` by the last part of its name; unspecified where nothing is given."""
    if given is None:
        return 0
    if given not in allowed:
        raise FieldError(name, f"is {given!r}, must be one of {', '.join(allowed)}")
    prefix = kind.Name(0).removesuffix("UNSPECIFIED")
    return kind.Value(f"{prefix}{given.upper()}")


def _check_numbers(options: GenerateOptions) -> None:
    """What a field of the request can hold at all; the server knows the narrower limits."""
    for name in _NATURAL:
        value, most = getattr(options, name), (1 << (64 if name == "seed" else 32)) - 1
        if value is not None and not 0 <= value <= most:
            raise FieldError(name, f"is {value}, must be in 0..{most}")
    if options.top_k is not None and not -(1 << 31) <= options.top_k < 1 << 31:
        raise FieldError("top_k", f"is {options.top_k}, no 32-bit integer")


def _check_text(text: str) -> None:
    """Bytes that are no UTF-8 come from the command line or a pipe as lone surrogates, which no message can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CliError("the prompt is not valid UTF-8", BAD_INPUT) from None
