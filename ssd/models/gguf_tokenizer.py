"""The byte-level BPE tokenizer inside a GGUF file, as Hugging Face files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ssd.models.errors import ModelError

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
"""Token types of the format: special, added but ordinary text, and padding rows that are no tokens at all."""


@dataclass(frozen=True)
class Splitting:
    """How text is cut before merging. `pattern`: a regular expression, None for GPT-2's own. `digits`: every digit
    apart. `compose`: Unicode is composed first. `whole_words`: a piece in the vocabulary is taken before any merge."""

    pattern: str | None = None
    digits: bool = False
    compose: bool = False
    whole_words: bool = False
    starts_with_bos: bool = False


def _word_pattern(digits: str) -> str:
    contractions = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    words, numbers, marks = r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}" + digits, r" ?[^\s\p{L}\p{N}]+[\r\n]*"
    spaces = r"\s*[\r\n]+|\s+(?!\S)|\s+"
    return f"{contractions}|{words}|{numbers}|{marks}|{spaces}"


SPLITTINGS: Mapping[str, Splitting] = MappingProxyType(
    {
        "default": Splitting(),
        "gpt-2": Splitting(),
        "smollm": Splitting(digits=True),
        "qwen2": Splitting(pattern=_word_pattern(""), compose=True),
        "llama-bpe": Splitting(pattern=_word_pattern("{1,3}"), whole_words=True, starts_with_bos=True),
    }
)
"""By the file's tokenizer.ggml.pre."""


def write_tokenizer(fields: Mapping[str, Any], directory: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json, chat template included, from the file's metadata.

    ModelError for a tokenizer that is not byte-level BPE of a known kind.
    """
    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or pre not in SPLITTINGS:
        raise ModelError(
            f"GGUF tokenizer {kind!r} with pre-tokenizer {pre!r} is not supported; supported: 'gpt2' with "
            f"{', '.join(SPLITTINGS)}"
        )
    splitting = SPLITTINGS[pre]
    names: list[str] = fields["tokenizer.ggml.tokens"]
    types: list[int] = fields.get("tokenizer.ggml.token_type") or [1] * len(names)
    merges = [tuple(merge.split(" ", 1)) for merge in fields.get("tokenizer.ggml.merges", ())]
    vocabulary = {name: index for index, name in enumerate(names) if types[index] != UNUSED}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=splitting.whole_words))
    if splitting.compose:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(splitting)
    tokenizer.decoder = decoders.ByteLevel()
    named = zip(names, types, strict=True)
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name, kind in named if kind == USER_DEFINED])
    named = zip(names, types, strict=True)
    tokenizer.add_special_tokens(
        [AddedToken(name, normalized=False, special=True) for name, k in named if k == CONTROL]
    )
    bos = fields.get("tokenizer.ggml.bos_token_id")
    if bos is not None and fields.get("tokenizer.ggml.add_bos_token", splitting.starts_with_bos):
        start = names[bos]
        tokenizer.post_processor = processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(
                    single=f"{start} $A", pair=f"{start} $A $B", special_tokens=[(start, bos)]
                ),
            ]
        )
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(_settings(fields, names), indent=1), encoding="utf-8")


def _pre_tokenizer(splitting: Splitting) -> pre_tokenizers.PreTokenizer:
    steps: list[pre_tokenizers.PreTokenizer] = []
    if splitting.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if splitting.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(splitting.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splitting.pattern is None))
    return pre_tokenizers.Sequence(steps)


def _settings(fields: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
    }
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    for setting, key in keys.items():
        index = fields.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None:
            settings[setting] = names[index]
    if "tokenizer.chat_template" in fields:
        settings["chat_template"] = fields["tokenizer.chat_template"]
    return settings
