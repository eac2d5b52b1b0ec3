"""Text to ids and back, and the identity of a tokenizer. Free of torch: the router runs on this alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import tokenizers

from ssd.errors import FieldError

TOKENIZER_FILE = "tokenizer.json"
# First 16 hex digits are enough to tell two tokenizers apart in a message to a person.
SHORT_DIGEST = 16


class Tokenizer:
    """A `tokenizers` tokenizer with the few calls that the system needs. Safe to use from several threads."""

    def __init__(self, backend: tokenizers.Tokenizer, source: str) -> None:
        """`source` is where it was loaded from, for messages."""
        # A tokenizer.json may carry the truncation and padding of a training run; a prompt must never be cut or filled.
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.source = source

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """Ids of `text`. special_tokens: add those that the model puts around a text (its BOS)."""
        # As a batch of one: `encode` holds the interpreter's lock from beginning to end, `encode_batch` lets it go.
        return self.backend.encode_batch([text], add_special_tokens=special_tokens)[0].ids

    def decode(self, ids: Sequence[int], *, special_tokens: bool = False) -> str:
        """Text of `ids`; ids that the tokenizer does not know (padding of the embedding) have no text."""
        return self.backend.decode(list(ids), skip_special_tokens=not special_tokens)

    def id_of(self, token: str) -> int | None:
        """The id of a token, or None."""
        return self.backend.token_to_id(token)

    def token_of(self, token_id: int) -> str | None:
        """The token of an id as the vocabulary spells it, or None."""
        return self.backend.id_to_token(token_id)

    @cached_property
    def vocab_size(self) -> int:
        """Highest id + 1, added tokens included. The model's embedding may be padded beyond it."""
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token: a text longer than n times this has more than n tokens."""
        return max(map(len, self.backend.get_vocab(with_added_tokens=True)), default=1)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that have no text unless it is asked for."""
        return frozenset(i for i, token in self.backend.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def byte_level(self) -> bool:
        """True if the text of ids is the tokens' bytes put together and decoded as UTF-8 (GPT-2's byte alphabet)."""
        decoder = json.loads(self.backend.to_str()).get("decoder") or {}
        while decoder.get("type") == "Sequence" and len(decoder["decoders"]) == 1:
            decoder = decoder["decoders"][0]
        return decoder.get("type") == "ByteLevel"

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) over every (token, id) pair and every added token: equal digests mean that ids mean the same.

        Sizes are left out on purpose: two models with one tokenizer may pad their embeddings differently.
        """
        vocabulary = sorted(self.backend.get_vocab(with_added_tokens=True).items())
        added = self.backend.get_added_tokens_decoder().items()
        marked = sorted((token_id, token.content, token.special) for token_id, token in added)
        content = json.dumps([vocabulary, marked], ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.source} ({self.digest[:SHORT_DIGEST]}, {self.vocab_size} tokens)"


def load_tokenizer(directory: str | Path) -> Tokenizer:
    """Load `tokenizer.json` of a model directory. Raises FieldError("model", ...) when it is missing or broken."""
    file = Path(directory) / TOKENIZER_FILE
    if not file.is_file():
        raise FieldError("model", f"no {TOKENIZER_FILE} in {directory}: not a Hugging Face model directory")
    try:
        return Tokenizer(tokenizers.Tokenizer.from_file(str(file)), str(directory))
    except Exception as error:  # the library raises plain Exception for every kind of bad file
        raise FieldError("model", f"cannot read {file}: {error}") from error


def tokenizer_digest(directory: str | Path) -> str:
    """sha256 (hex) that names the tokenizer of a model directory; see Tokenizer.digest."""
    return load_tokenizer(directory).digest
