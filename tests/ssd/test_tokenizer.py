"""Loading, identity and text of tokenizers."""

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from ssd.errors import FieldError
from ssd.tokenizer import load_tokenizer, tokenizer_digest


def byte_tokenizer(*specials: str, merges: tuple[tuple[str, str], ...] = ()) -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(alphabet + [a + b for a, b in merges])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in specials])
    return backend


def save(backend: tokenizers.Tokenizer, folder: Path) -> Path:
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    return folder


def test_text_survives_the_way_to_ids_and_back(tmp_path):
    tokenizer = load_tokenizer(save(byte_tokenizer("<|end|>"), tmp_path / "a"))
    ids = tokenizer.encode("naïve 🙂<|end|>")
    assert ids[-1] == tokenizer.id_of("<|end|>") == 256
    assert tokenizer.decode(ids) == "naïve 🙂"
    assert tokenizer.decode(ids, special_tokens=True) == "naïve 🙂<|end|>"
    assert tokenizer.vocab_size == 257
    assert tokenizer.special_ids == {256}


def test_ids_that_the_tokenizer_does_not_know_have_no_text(tmp_path):
    tokenizer = load_tokenizer(save(byte_tokenizer(), tmp_path / "a"))
    assert tokenizer.decode([*tokenizer.encode("ab"), 300, *tokenizer.encode("c")]) == "abc"


def test_truncation_and_padding_of_the_file_are_switched_off(tmp_path):
    backend = byte_tokenizer("<pad>")
    backend.enable_truncation(4)
    backend.enable_padding(pad_id=256, pad_token="<pad>", length=64)
    assert len(load_tokenizer(save(backend, tmp_path / "a")).encode("0123456789")) == 10


def test_digest_does_not_depend_on_the_place_or_the_layout_of_the_file(tmp_path):
    first = save(byte_tokenizer("<|end|>"), tmp_path / "a")
    second = save(byte_tokenizer("<|end|>"), tmp_path / "b")
    file = second / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()), indent=4))
    assert tokenizer_digest(first) == tokenizer_digest(second)
    assert len(tokenizer_digest(first)) == 64


@pytest.mark.parametrize(
    "other",
    [
        byte_tokenizer("<|stop|>"),
        byte_tokenizer("<|end|>", "<|more|>"),
        byte_tokenizer(),
        byte_tokenizer("<|end|>", merges=(("a", "b"),)),
    ],
    ids=["other special token", "one more", "one less", "other vocabulary"],
)
def test_digest_tells_tokenizers_apart(tmp_path, other):
    one = save(byte_tokenizer("<|end|>"), tmp_path / "a")
    assert tokenizer_digest(one) != tokenizer_digest(save(other, tmp_path / "b"))


def test_digest_tells_a_special_token_from_a_plain_one(tmp_path):
    plain = byte_tokenizer()
    plain.add_tokens(["<|end|>"])
    special = save(byte_tokenizer("<|end|>"), tmp_path / "a")
    assert tokenizer_digest(special) != tokenizer_digest(save(plain, tmp_path / "b"))


def test_a_message_can_name_both_tokenizers(tmp_path):
    tokenizer = load_tokenizer(save(byte_tokenizer("<|end|>"), tmp_path / "a"))
    assert str(tmp_path / "a") in str(tokenizer)
    assert tokenizer.digest[:16] in str(tokenizer)


def test_a_missing_or_broken_tokenizer_names_the_setting_and_the_file(tmp_path):
    with pytest.raises(FieldError, match="model: no tokenizer.json in") as missing:
        load_tokenizer(tmp_path / "nowhere")
    assert missing.value.field == "model"
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FieldError, match="cannot read"):
        load_tokenizer(tmp_path)


def test_byte_level_decoding_is_recognised(tmp_path):
    backend = byte_tokenizer()
    assert load_tokenizer(save(backend, tmp_path / "a")).byte_level
    backend.decoder = decoders.Sequence([decoders.ByteLevel()])
    assert load_tokenizer(save(backend, tmp_path / "b")).byte_level
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    assert not load_tokenizer(save(backend, tmp_path / "c")).byte_level
