"""Incremental detokenization: text as soon as it is final, never a part of a character.

For any ids, the texts of all `push` calls and of the final `flush` joined together are Tokenizer.decode of those ids.
"""

from __future__ import annotations

import codecs
import re
from functools import lru_cache
from typing import Protocol

from tokenizers import pre_tokenizers

from ssd.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# U+FFFD: what a decoder shows for bytes that are no character (yet).
_REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """The text of one growing sequence of ids."""

    def push(self, token_id: int) -> str:
        """Text that became final with this token; "" while a character is incomplete."""

    def flush(self) -> str:
        """What is left at the end of the sequence: an incomplete character as U+FFFD, as a full decode shows it."""


class ByteLevelDetokenizer:
    """For byte-level tokenizers (Llama 3, Qwen, SmolLM): a table and an incremental UTF-8 decoder, no re-decoding."""

    def __init__(self, pieces: TokenBytes) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._pieces[token_id])

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class TokenBytes(dict[int, bytes]):
    """Token id -> its bytes in the text, filled as ids are met; shared by requests that treat special tokens alike."""

    def __init__(self, tokenizer: Tokenizer, special_tokens: bool) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._special_tokens = special_tokens
        self._alphabet = byte_alphabet()

    def __missing__(self, token_id: int) -> bytes:
        self[token_id] = piece = self._bytes_of(token_id)
        return piece

    def _bytes_of(self, token_id: int) -> bytes:
        token = self._tokenizer.token_of(token_id)
        if token is None or (token_id in self._tokenizer.special_ids and not self._special_tokens):
            return b""
        try:
            return bytes(self._alphabet[character] for character in token)
        except KeyError:  # an added token, spelled in plain text
            return token.encode()


class WindowDetokenizer:
    """For every other decoder: decodes a short window again for each token and takes what came new.

    The window begins where text was last final, one piece earlier, since decoders treat the first token of a text
    specially (they strip its space). Ids of byte-fallback tokens are held until the run of them ends: one wrong byte
    changes how the whole run is shown.
    """

    def __init__(self, tokenizer: Tokenizer, special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._special_tokens = special_tokens
        self._window: list[int] = []
        self._final = 0  # tokens of the window whose text has been given out
        self._shown = ""  # that text

    def push(self, token_id: int) -> str:
        token = self._tokenizer.token_of(token_id)
        if token is None or (token_id in self._tokenizer.special_ids and not self._special_tokens):
            return ""
        self._window.append(token_id)
        if _BYTE_TOKEN.fullmatch(token):
            return ""
        text = self._decode(self._window)
        return "" if text.endswith(_REPLACEMENT) else self._advance(text)

    def flush(self) -> str:
        return self._advance(self._decode(self._window))

    def _advance(self, text: str) -> str:
        new = text[len(self._shown) :]
        # A window that starts at a piece without text would lose what the first piece means to the decoder.
        if new:
            self._window = self._window[self._final :]
            self._final = len(self._window)
            self._shown = self._decode(self._window)
        return new

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, special_tokens=self._special_tokens)


class Detokenizers:
    """Makes the right detokenizer for a tokenizer, once it is loaded."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces = {keep: TokenBytes(tokenizer, keep) for keep in (False, True)}

    def new(self, special_tokens: bool) -> Detokenizer:
        """A detokenizer for one request. special_tokens: keep them in the text."""
        if self._tokenizer.byte_level:
            return ByteLevelDetokenizer(self._pieces[special_tokens])
        return WindowDetokenizer(self._tokenizer, special_tokens)


@lru_cache(maxsize=1)
def byte_alphabet() -> dict[str, int]:
    """Character -> byte of the byte-level alphabet: printable bytes are themselves, others follow from U+0100 on."""
    characters = pre_tokenizers.ByteLevel.alphabet()
    plain = {c: ord(c) for c in characters if ord(c) < 0x100}
    rest = sorted(c for c in characters if ord(c) >= 0x100)
    hidden = sorted(set(range(0x100)) - set(plain.values()))
    return plain | dict(zip(rest, hidden, strict=True))
