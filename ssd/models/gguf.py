"""GGUF files of the supported families, converted into Hugging Face directories.

Weights are dequantised to bfloat16. For the architecture "llama" the format stores query and key rows in another order
(pairs of channels side by side instead of halves), which is undone here.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
import torch
from gguf import GGUFReader, dequantize

from ssd.layers.rope import Rope
from ssd.layers.rotary import inverse_frequencies
from ssd.models.checkpoint import write_checkpoint
from ssd.models.config import FAMILIES, ModelConfig
from ssd.models.errors import ModelError
from ssd.models.gguf_tokenizer import write_tokenizer

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"
SAME_MATRIX = 0.98
"""Cosine above which embedding and head are taken for two quantised copies of one matrix; unrelated ones are near 0."""

Progress = Callable[[int, int], None]


def convert(path: Path, directory: Path, progress: Progress | None = None) -> None:
    """Writes the model in `path` as a Hugging Face directory into the empty `directory`. ModelError names what is not
    supported. progress is called with (bytes done, bytes in all)."""
    try:
        reader = GGUFReader(path)
    except (ValueError, OSError, IndexError, KeyError) as error:
        raise ModelError(f"{path} is not a readable GGUF file: {error}") from None
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    try:
        raw, generation = configuration(fields, tensors)
        config = ModelConfig.from_dict(raw, generation)
        write_tokenizer(fields, directory)
    except KeyError as error:
        raise ModelError(f"{path} lacks the metadata {error.args[0]!r}") from None
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None
    (directory / "config.json").write_text(json.dumps(raw, indent=1), encoding="utf-8")
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=1), encoding="utf-8")
    write_checkpoint(directory, _weights(tensors, config, progress))


def configuration(fields: Mapping[str, Any], tensors: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Contents of config.json and generation_config.json."""
    if fields.get("split.count", 0) > 1:
        raise ModelError("a GGUF model in several files is not supported; merge them first (llama.cpp's gguf-split)")
    family = fields["general.architecture"]
    if family not in FAMILIES:
        raise ModelError(f"GGUF architecture {family!r} is not supported; supported: {', '.join(FAMILIES)}")

    def value(key: str, default: Any = None) -> Any:
        return fields[f"{family}.{key}"] if default is None else fields.get(f"{family}.{key}", default)

    heads, hidden = value("attention.head_count"), value("embedding_length")
    head_dim = value("attention.key_length", hidden // heads)
    ends = [fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    eos = list(dict.fromkeys(token for token in ends if token is not None))
    bos = fields.get("tokenizer.ggml.bos_token_id")
    raw = {
        "architectures": [
            {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}[family]
        ],
        "model_type": family,
        "vocab_size": int(tensors["token_embd.weight"].shape[1]),
        "hidden_size": hidden,
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "attention_bias": family != "qwen2" and "blk.0.attn_q.bias" in tensors,
        "max_position_embeddings": value("context_length"),
        # Stored as float32; the digits beyond its precision are noise that the original file did not have.
        "rms_norm_eps": float(f"{value('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_parameters": _rope(value("rope.freq_base", 10000.0), head_dim, value, tensors.get(ROPE_FACTORS)),
        "tie_word_embeddings": _tied(tensors),
        "bos_token_id": bos,
        "eos_token_id": eos[0] if eos else None,
        "dtype": "bfloat16",
    }
    return raw, {"bos_token_id": bos, "eos_token_id": eos}


def _rope(theta: float, head_dim: int, value: Callable[..., Any], factors: Any) -> dict[str, Any]:
    kind = value("rope.scaling.type", "none")
    if factors is not None:
        return _llama3(theta, head_dim, _array(factors))
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": theta, "factor": value("rope.scaling.factor")}
    if kind != "none":
        raise ModelError(f"rope scaling {kind!r} is not supported; supported: none, linear, Llama 3's")
    return {"rope_type": "default", "rope_theta": theta}


def _llama3(theta: float, head_dim: int, factors: numpy.ndarray) -> dict[str, Any]:
    # The format keeps only the resulting divisor of each frequency. All Llama 3.x models share the other parameters.
    rope = Rope(theta, "llama3", float(factors.max()), 1.0, 4.0, 8192)
    expected = inverse_frequencies(Rope(theta), head_dim) / inverse_frequencies(rope, head_dim)
    if not numpy.allclose(expected.numpy(), factors, rtol=1e-3):
        raise ModelError(f"{ROPE_FACTORS} are not the ones of Llama 3's rope scaling with factor {rope.factor:g}")
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": rope.factor,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "original_max_position_embeddings": rope.original_max_position,
    }


def _tied(tensors: Mapping[str, Any]) -> bool:
    if "output.weight" not in tensors:
        return True
    embedding, head = tensors["token_embd.weight"], tensors["output.weight"]
    if list(embedding.shape) != list(head.shape):
        return False
    a, b = _array(embedding).ravel(), _array(head).ravel()
    return float(a @ b) > SAME_MATRIX * float(numpy.linalg.norm(a) * numpy.linalg.norm(b))


def _weights(
    tensors: Mapping[str, Any], config: ModelConfig, progress: Progress | None
) -> Iterator[tuple[str, torch.Tensor]]:
    total, done = sum(int(tensor.n_bytes) for tensor in tensors.values()), 0
    for name, tensor in tensors.items():
        # Of two copies of a tied matrix the head is the finer one.
        superseded = name == "token_embd.weight" and config.tied and "output.weight" in tensors
        if not superseded and name != ROPE_FACTORS:
            target = checkpoint_name(name)
            if config.tied and target == "lm_head.weight":
                target = "model.embed_tokens.weight"
            weight = torch.from_numpy(_array(tensor))
            if config.family == "llama" and ".self_attn.q_proj." in target:
                weight = unpermuted(weight, config.heads)
            if config.family == "llama" and ".self_attn.k_proj." in target:
                weight = unpermuted(weight, config.kv_heads)
            yield target, weight.to(torch.bfloat16).contiguous()
        done += int(tensor.n_bytes)
        if progress is not None:
            progress(done, total)


def checkpoint_name(name: str) -> str:
    """blk.3.attn_q.weight → model.layers.3.self_attn.q_proj.weight; ModelError for a tensor of another architecture."""
    *place, stem, kind = name.split(".")
    if stem not in NAMES or kind not in ("weight", "bias") or (place and (place[0] != "blk" or len(place) != 2)):
        raise ModelError(f"GGUF tensor {name!r} has no place in the supported families")
    return f"model.layers.{place[1]}.{NAMES[stem]}.{kind}" if place else f"{NAMES[stem]}.{kind}"


def unpermuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows [heads * d, …] from pairs side by side (0, d/2, 1, d/2 + 1, …) back to halves (0, 1, …, d/2, …)."""
    return weight.view(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def _array(tensor: Any) -> numpy.ndarray:
    """Dequantised float32 in the shape that checkpoints use (the format lists dimensions in reverse)."""
    values = dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
    return values.reshape([int(size) for size in reversed(tensor.shape)])
