"""Incremental detokenization equals a full decode, for tokenizers of every kind."""

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from router.detokenizer import ByteLevelDetokenizer, Detokenizers, WindowDetokenizer, byte_alphabet
from ssd.tokenizer import Tokenizer
from tests.toy import byte_alphabet as reference_alphabet


def byte_level() -> Tokenizer:
    vocabulary = {character: byte for byte, character in enumerate(reference_alphabet())}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    backend.add_tokens(["<tool call>", "é x", "plain"])
    return Tokenizer(backend, "byte level")


def sentence_piece(decoder: decoders.Decoder) -> Tokenizer:
    pieces = ["▁", "▁hello", "▁wor", "ld", "é", "你", "\n", "▁▁", ".", "##ing", "'s", "▁n't"]
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {piece: 256 + i for i, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    backend.decoder = decoder
    backend.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(backend, "sentence piece")


LLAMA2 = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
KINDS = {
    "byte level": byte_level(),
    "byte fallback": sentence_piece(LLAMA2),
    "metaspace": sentence_piece(decoders.Metaspace()),
    "word piece": sentence_piece(decoders.WordPiece()),
}
# Bytes of characters of 2, 3 and 4 bytes, of U+FFFD itself, and some that are never a part of any.
TRICKY = [*"é你🙂\ufffd a".encode(), 0xC0, 0xFF, 0x80]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("special_tokens", [False, True])
@given(data=st.data())
def test_pieces_put_together_are_the_full_decode(kind, special_tokens, data):
    tokenizer = KINDS[kind]
    ids_of = st.one_of(st.sampled_from(TRICKY), st.integers(256, tokenizer.vocab_size + 2), st.integers(0, 255))
    ids = data.draw(st.lists(ids_of, max_size=25))
    detokenizer = Detokenizers(tokenizer).new(special_tokens)
    text = "".join(detokenizer.push(token_id) for token_id in ids) + detokenizer.flush()
    assert text == tokenizer.decode(ids, special_tokens=special_tokens)


@given(text=st.text(max_size=30))
def test_no_piece_of_valid_text_holds_a_part_of_a_character(text):
    detokenizer = Detokenizers(KINDS["byte level"]).new(special_tokens=False)
    pieces = [detokenizer.push(byte) for byte in text.encode()]
    characters = [piece for piece in pieces if piece]
    assert characters == list(text)
    assert detokenizer.flush() == ""


def test_a_character_comes_with_the_token_that_completes_it():
    detokenizer = Detokenizers(KINDS["byte level"]).new(special_tokens=False)
    assert [detokenizer.push(byte) for byte in "a🙂b".encode()] == ["a", "", "", "", "🙂", "b"]


def test_an_incomplete_character_at_the_end_is_shown_as_a_replacement():
    for kind in ("byte level", "byte fallback"):
        detokenizer = Detokenizers(KINDS[kind]).new(special_tokens=False)
        assert detokenizer.push("é".encode()[0]) == ""
        assert detokenizer.flush() == "\ufffd"


def test_the_fast_way_is_taken_where_it_is_right():
    assert isinstance(Detokenizers(KINDS["byte level"]).new(False), ByteLevelDetokenizer)
    assert isinstance(Detokenizers(KINDS["byte fallback"]).new(False), WindowDetokenizer)


def test_the_byte_alphabet_is_the_usual_one():
    assert byte_alphabet() == {character: byte for byte, character in enumerate(reference_alphabet())}
