"""From command-line options to a GenerateRequest."""

from collections.abc import Sequence
from dataclasses import dataclass

from protos.ssd.v1 import inference_pb2, types_pb2
from ssd.cli.errors import BAD_INPUT, CliError
from ssd.config import MODES
from ssd.errors import FieldError


@dataclass(frozen=True)
class GenerateOptions:
    """Everything but the input; None = the server's default. The server judges the values."""

    mode: str | None = None
    k: int | None = None
    fan_out: int | None = None
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


Messages = Sequence[tuple[str, str]]
"""(role, content) pairs."""


def build_request(prompt: str | Messages, options: GenerateOptions) -> inference_pb2.GenerateRequest:
    """A request for raw text or for chat messages.

    Raises FieldError for a mode that is none, CliError for a number that no request can hold.
    """
    if options.mode is not None and options.mode not in MODES:
        raise FieldError("mode", f"is {options.mode!r}, must be one of {', '.join(MODES)}")
    mode = f"MODE_{options.mode.upper()}" if options.mode else "MODE_UNSPECIFIED"
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
            speculation=inference_pb2.SpeculationParameters(mode=mode, k=options.k, fan_out=options.fan_out),
        )
    except UnicodeEncodeError:
        raise CliError("--stop: is not valid UTF-8", BAD_INPUT) from None
    except ValueError as error:
        raise CliError(f"a number is out of range: {error}", BAD_INPUT) from None
    _check_text(prompt if isinstance(prompt, str) else "".join(content for _, content in prompt))
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.chat.messages.extend(inference_pb2.ChatMessage(role=role, content=content) for role, content in prompt)
    return request


def _check_text(text: str) -> None:
    """Bytes that are no UTF-8 come from the command line or a pipe as lone surrogates, which no message can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CliError("the prompt is not valid UTF-8", BAD_INPUT) from None
