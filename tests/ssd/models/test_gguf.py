"""A GGUF file becomes the Hugging Face directory that it was made from."""

import json

import gguf
import numpy
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from ssd.layers.rope import Rope
from ssd.layers.rotary import inverse_frequencies
from ssd.models.builtin import resolve_model
from ssd.models.config import ModelConfig
from ssd.models.errors import ModelError
from ssd.models.gguf import NAMES, checkpoint_name, convert
from tests.ssd.engine import Engine, random_ids
from tests.toy import CHAT_TEMPLATE, SPECIALS, VOCAB, byte_alphabet, make_toy

STEMS = {target: stem for stem, target in NAMES.items()}
MERGES = ["h e", "l l", "he ll", "Ġ hell"]
PLAIN, CONTROL, UNUSED = 1, 3, 5


def permuted(weight, heads):
    """Rows as the format stores them for llama: halves of each head interleaved into pairs."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


def gguf_name(name):
    stem, kind = name.removeprefix("model.").rsplit(".", 1)
    if stem.startswith("layers."):
        _, layer, rest = stem.split(".", 2)
        return f"blk.{layer}.{STEMS[rest]}.{kind}"
    return f"{STEMS.get('model.' + stem) or STEMS[stem]}.{kind}"


def write_gguf(source, path, *, change=None, pre="smollm", quantize=None, extra=None, fields=None):
    """The model in `source` (a toy) as a GGUF file. quantize: a tensor type for all matrices, float32 by default."""
    config, weights = json.loads((source / "config.json").read_text()), load_file(source / "model.safetensors")
    family = config["model_type"]
    writer = gguf.GGUFWriter(path, (fields or {}).get("architecture", family))
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    words = [merge.replace(" ", "") for merge in MERGES]
    tokens = byte_alphabet() + SPECIALS + words
    types = [PLAIN] * 256 + [CONTROL] * len(SPECIALS) + [PLAIN] * len(words)
    padding = VOCAB - len(tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens + [f"[PAD{i}]" for i in range(padding)])
    writer.add_token_types(types + [UNUSED] * padding)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_eot_token_id(259)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, weight in weights.items():
        array = weight.float().numpy()
        if family == "llama" and "q_proj" in name:
            array = permuted(array, config["num_attention_heads"])
        if family == "llama" and "k_proj" in name:
            array = permuted(array, config["num_key_value_heads"])
        array = numpy.ascontiguousarray(array)
        if quantize is not None and array.ndim == 2 and array.shape[1] % 32 == 0:
            writer.add_tensor(gguf_name(name), gguf.quantize(array, quantize), raw_dtype=quantize)
        else:
            writer.add_tensor(gguf_name(name), array)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def converted(path, tmp_path):
    directory = tmp_path / "converted"
    directory.mkdir()
    convert(path, directory)
    return directory


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tie", [True, False])
def test_logits_are_those_of_the_original(tmp_path, family, tie):
    source = make_toy(tmp_path / "source", family, tie=tie, dtype=torch.bfloat16)
    directory = converted(write_gguf(source, tmp_path / "toy.gguf"), tmp_path)
    ids = random_ids(40, seed=4)
    expected = Engine.load(source, dtype="float64").logits(ids)
    assert torch.equal(Engine.load(directory, dtype="float64").logits(ids), expected)
    original, config = ModelConfig.from_directory(source), ModelConfig.from_directory(directory)
    assert (config.family, config.norm_eps, config.rope) == (original.family, original.norm_eps, original.rope)
    assert config.tied is tie and config.eos_ids == (257, 259)


def test_two_quantised_copies_of_a_tied_matrix_become_the_finer_one(tmp_path):
    source = make_toy(tmp_path / "source", "qwen2", tie=True, dtype=torch.bfloat16)
    embedding = load_file(source / "model.safetensors")["model.embed_tokens.weight"].float().numpy()
    kind = gguf.GGMLQuantizationType.Q4_0
    path = write_gguf(source, tmp_path / "toy.gguf", quantize=kind, extra={"output.weight": embedding})
    directory = converted(path, tmp_path)
    assert ModelConfig.from_directory(directory).tied
    stored = load_file(directory / "model.safetensors")
    assert "lm_head.weight" not in stored
    assert numpy.array_equal(stored["model.embed_tokens.weight"].float().numpy(), embedding)


def test_the_tokenizer_merges_splits_digits_and_knows_its_specials(tmp_path):
    source = make_toy(tmp_path / "source", dtype=torch.bfloat16)
    directory = converted(write_gguf(source, tmp_path / "toy.gguf"), tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    text = "hello hell 12 é<|im_end|>"
    pieces = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
    assert pieces == ["hell", "o", "Ġhell", "Ġ", "1", "2", "Ġ", "Ã", "©", "<|im_end|>"]
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer) == 264
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_a_llama_3_tokenizer_puts_its_first_token_in_front(tmp_path):
    source = make_toy(tmp_path / "source", dtype=torch.bfloat16)
    directory = converted(write_gguf(source, tmp_path / "toy.gguf", pre="llama-bpe"), tmp_path)
    assert AutoTokenizer.from_pretrained(directory)("hello")["input_ids"][0] == 256


def test_llama_3_rope_scaling_is_recognised_by_its_divisors(tmp_path):
    source = make_toy(tmp_path / "source", dtype=torch.bfloat16)
    rope = Rope(10000.0, "llama3", 32.0, 1.0, 4.0, 8192)
    factors = (inverse_frequencies(Rope(10000.0), 16) / inverse_frequencies(rope, 16)).numpy()
    path = write_gguf(source, tmp_path / "toy.gguf", extra={"rope_freqs.weight": factors})
    assert ModelConfig.from_directory(converted(path, tmp_path)).rope == rope
    other = write_gguf(source, tmp_path / "other.gguf", extra={"rope_freqs.weight": factors[::-1].copy()})
    with pytest.raises(ModelError, match="rope_freqs"):
        convert(other, tmp_path / "converted")


def test_what_is_not_supported_is_named(tmp_path):
    source = make_toy(tmp_path / "source", dtype=torch.bfloat16)
    with pytest.raises(ModelError, match="architecture 'gemma3' is not supported; supported: llama"):
        convert(write_gguf(source, tmp_path / "a.gguf", fields={"architecture": "gemma3"}), tmp_path)
    with pytest.raises(ModelError, match="pre-tokenizer 'tekken' is not supported"):
        convert(write_gguf(source, tmp_path / "b.gguf", pre="tekken"), tmp_path)
    extra = {"blk.0.ffn_gate_exps.weight": numpy.zeros((2, 2), numpy.float32)}
    with pytest.raises(ModelError, match=r"'blk\.0\.ffn_gate_exps\.weight' has no place"):
        convert(write_gguf(source, tmp_path / "c.gguf", extra=extra), tmp_path)
    (tmp_path / "d.gguf").write_bytes(b"GGUFx")
    with pytest.raises(ModelError, match=r"d\.gguf is not a readable GGUF file"):
        convert(tmp_path / "d.gguf", tmp_path)


def test_names_follow_their_layers():
    assert checkpoint_name("blk.12.attn_k_norm.weight") == "model.layers.12.self_attn.k_norm.weight"
    assert checkpoint_name("output.weight") == "lm_head.weight"


def test_a_file_is_converted_once_and_again_when_it_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("SSD_CACHE", str(tmp_path / "cache"))
    path = write_gguf(make_toy(tmp_path / "source", dtype=torch.bfloat16), tmp_path / "toy.gguf")
    calls = []
    first = resolve_model(path, progress=lambda done, total: calls.append((done, total)))
    assert first.is_relative_to(tmp_path / "cache") and calls[-1][0] == calls[-1][1]
    calls.clear()
    assert resolve_model(str(path), progress=lambda *call: calls.append(call)) == first and not calls
    write_gguf(make_toy(tmp_path / "source", seed=9, dtype=torch.bfloat16), path)
    assert resolve_model(path) != first
