"""Tiny random-weight models made in the test: 180k parameters, laws that are neither flat nor peaked, and drafts whose
agreement with them is set by one number. No download, and the same weights for the same seed."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB, HIDDEN, INNER, LAYERS = 320, 64, 176, 3
STD = 0.2
"""Spread of the weights. The library's usual 0.02 gives nearly uniform laws, which hide sampling bugs."""

SPECIALS = ["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"]
BOS, EOS, IM_START, IM_END = range(256, 260)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def make_toy(
    path: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    tie: bool = False,
    heads: int = 4,
    kv_heads: int = 2,
    layers: int = LAYERS,
    dtype: torch.dtype = torch.float32,
    rope: dict | None = None,
    max_position: int = 1024,
    eos: int | Sequence[int] = (EOS, IM_END),
    tokenizer: bool = True,
) -> Path:
    """Writes a Hugging Face directory of this family to `path` and returns it.

    rope: Hugging Face rope parameters, LLAMA3_ROPE for one; default plain. eos: ids in generation_config.json.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    head_dim = HIDDEN // heads
    config = {
        "architectures": [FAMILIES[family]],
        "model_type": family,
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": max_position,
        "rms_norm_eps": 1e-6,
        "rope_parameters": rope or {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": tie,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "dtype": str(dtype).removeprefix("torch."),
    }
    generation = {"bos_token_id": BOS, "eos_token_id": eos if isinstance(eos, int) else list(eos)}
    (path / "config.json").write_text(json.dumps(config, indent=1))
    (path / "generation_config.json").write_text(json.dumps(generation))
    save_file(toy_weights(config, seed, dtype), path / "model.safetensors", metadata={"format": "pt"})
    if tokenizer:
        write_tokenizer(path)
    return path


def toy_weights(config: dict, seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Random weights under Hugging Face names, drawn in float64 so that every dtype is a rounding of the same model."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, mean: float = 0.0) -> torch.Tensor:
        return (mean + STD * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype)

    dim, family = config["head_dim"], config["model_type"]
    wide, narrow = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    weights = {"model.embed_tokens.weight": normal(VOCAB, HIDDEN), "model.norm.weight": normal(HIDDEN, mean=1.0)}
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = normal(VOCAB, HIDDEN)
    for layer in range(config["num_hidden_layers"]):
        stem = f"model.layers.{layer}"
        for name, outputs in (("q_proj", wide), ("k_proj", narrow), ("v_proj", narrow)):
            weights[f"{stem}.self_attn.{name}.weight"] = normal(outputs, HIDDEN)
            if family == "qwen2":
                weights[f"{stem}.self_attn.{name}.bias"] = normal(outputs)
        weights[f"{stem}.self_attn.o_proj.weight"] = normal(HIDDEN, wide)
        if family == "qwen3":
            weights[f"{stem}.self_attn.q_norm.weight"] = normal(dim, mean=1.0)
            weights[f"{stem}.self_attn.k_norm.weight"] = normal(dim, mean=1.0)
        weights[f"{stem}.mlp.gate_proj.weight"] = normal(INNER, HIDDEN)
        weights[f"{stem}.mlp.up_proj.weight"] = normal(INNER, HIDDEN)
        weights[f"{stem}.mlp.down_proj.weight"] = normal(HIDDEN, INNER)
        weights[f"{stem}.input_layernorm.weight"] = normal(HIDDEN, mean=1.0)
        weights[f"{stem}.post_attention_layernorm.weight"] = normal(HIDDEN, mean=1.0)
    return weights


def make_noisy_draft(source: Path, path: Path, noise: float, seed: int = 1) -> Path:
    """A copy of the model in `source` with each matrix W replaced by W + noise * std(W) * N(0, 1).

    Greedy agreement with the source is about 75 / 47 % at noise .02 / .05 for Llama, 83 / 60 % for Qwen3, 100 % at 0.
    """
    source, path = Path(source), Path(path)
    shutil.copytree(source, path, dirs_exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    weights = load_file(source / "model.safetensors")
    for name in sorted(weights):
        weight = weights[name].double()
        if weight.dim() == 2:
            weight = weight + noise * weight.std() * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weights[name] = weight.to(weights[name].dtype)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


def write_tokenizer(path: Path) -> None:
    """A byte-level tokenizer: id b is the byte b, so one token may be part of a character; 256.. are specials."""
    alphabet = byte_alphabet()
    tokenizer = Tokenizer(models.BPE(vocab={char: byte for byte, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = SPECIALS + [f"<|reserved_{i}|>" for i in range(VOCAB - 256 - len(SPECIALS))]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def byte_alphabet() -> list[str]:
    """The printable character that byte-level tokenizers write for each byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]
