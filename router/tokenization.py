"""From what a client sends (text, chat, ids) to prompt ids."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from protos.ssd.v1 import inference_pb2
from ssd.errors import FieldError
from ssd.rpc.status import ApiError, invalid
from ssd.tokenizer import Tokenizer, load_tokenizer

# Longer texts are tokenized on a thread: one long prompt must not hold up the streams of others.
_INLINE_CHARACTERS = 2048
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplate:
    """A model's own chat template, in a sandbox."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], now: Callable[[], datetime.datetime]) -> None:
        """Raises FieldError("model", ...) if it cannot be compiled. now: for templates that print the date."""
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda layout: now().strftime(layout)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise FieldError("model", f"its chat template cannot be compiled: {error}") from error
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt, with the opening of the assistant's turn at its end. Raises ApiError for messages it refuses."""
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **self._special_tokens
            )
        except Exception as error:  # a template is a program of the model's: it may raise anything on odd messages
            raise invalid("chat.messages", f"the model's chat template refuses them: {error}") from error


class Tokenization:
    """The tokenizer of the model that is served, and its chat template if it has one."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self.tokenizer = tokenizer
        self._template = template

    async def of_text(self, text: str, most: int | None = None) -> list[int]:
        """Ids of a text, with the model's own leading special tokens. Raises ApiError for an empty one, and for
        one that must have more than `most` tokens."""
        if not text:
            raise invalid("text", "must not be empty")
        return await self._encode(text, special_tokens=True, most=most, field="text")

    async def of_chat(self, chat: inference_pb2.ChatInput, most: int | None = None) -> list[int]:
        """Ids of a conversation; the template writes the special tokens. `most` as in `of_text`."""
        if not chat.messages:
            raise invalid("chat.messages", "must hold at least one message")
        for index, message in enumerate(chat.messages):
            if not message.role:
                raise invalid(f"chat.messages[{index}].role", "must not be empty")
        if self._template is None:
            message_ = "the model has no chat template; send text or token_ids"
            raise ApiError(grpc.StatusCode.UNIMPLEMENTED, f"chat: {message_}")
        text = self._template.render([{"role": m.role, "content": m.content} for m in chat.messages])
        return await self._encode(text, special_tokens=False, most=most, field="chat")

    async def _encode(self, text: str, *, special_tokens: bool, most: int | None, field: str) -> list[int]:
        # A text that cannot fit is refused before anybody spends seconds on it.
        if most is not None and len(text) > most * self.tokenizer.longest_token:
            raise invalid(field, f"has {len(text)} characters; no text of more than {most} tokens is taken")
        if len(text) <= _INLINE_CHARACTERS:
            return self.tokenizer.encode(text, special_tokens=special_tokens)
        return await asyncio.to_thread(self.tokenizer.encode, text, special_tokens=special_tokens)


def load_tokenization(directory: Path, now: Callable[[], datetime.datetime] = datetime.datetime.now) -> Tokenization:
    """Read tokenizer and chat template of a model directory. Raises FieldError("model", ...)."""
    settings = _read_json(directory / "tokenizer_config.json")
    source = _template_source(directory, settings)
    special = _special_tokens(_read_json(directory / "special_tokens_map.json")) | _special_tokens(settings)
    template = ChatTemplate(source, special, now) if source is not None else None
    return Tokenization(load_tokenizer(directory), template)


def _template_source(directory: Path, settings: Mapping[str, Any]) -> str | None:
    """A file of its own wins over the entry in tokenizer_config.json; of several named templates, `default`."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    named = settings.get("chat_template")
    if isinstance(named, list):
        return next((entry["template"] for entry in named if entry["name"] == "default"), None)
    return named


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name in _SPECIAL_TOKENS:
        value = settings.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FieldError("model", f"cannot read {file}: {error}") from error
    return content if isinstance(content, dict) else {}


def _to_json(value: Any, indent: int | None = None) -> str:
    # Jinja's own filter escapes for HTML, which a model was never trained on.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training; here it is only its contents."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
