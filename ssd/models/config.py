"""The shape of a model, read once from a Hugging Face directory and checked at the door."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssd.layers.rope import Rope
from ssd.models.errors import ModelError

FAMILIES = ("llama", "qwen2", "qwen3")
ROPE_KINDS = ("default", "linear", "llama3")


@dataclass(frozen=True)
class ModelConfig:
    """Dense decoder-only model. Sizes are the whole model's, not one rank's."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_position: int
    rope: Rope
    norm_eps: float = 1e-6
    tied: bool = False
    """Whether the output head is the embedding."""
    attention_bias: bool = False
    """Bias on query, key and value. On the output projection too, except in Qwen2."""
    mlp_bias: bool = False
    eos_ids: tuple[int, ...] = ()
    """Every id that ends a generation."""
    bos_id: int | None = None
    stored_dtype: str = "float32"
    """dtype that the checkpoint states: float32, bfloat16, float16 or float64."""

    @classmethod
    def from_directory(cls, directory: str | Path) -> "ModelConfig":
        """Reads config.json and, where present, generation_config.json; ModelError names what is wrong."""
        directory = Path(directory)
        if not directory.is_dir():
            raise ModelError(f"model directory {directory} does not exist")
        if not (directory / "config.json").is_file():
            raise ModelError(f"{directory} has no config.json, so it is not a Hugging Face model directory")
        generation = directory / "generation_config.json"
        try:
            return cls.from_dict(_read(directory / "config.json"), _read(generation) if generation.is_file() else {})
        except ModelError as error:
            raise ModelError(f"{directory / 'config.json'}: {error}") from None

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> "ModelConfig":
        """From the two files' contents. The end-of-sequence ids of `generation` win over the configuration's."""
        family = raw.get("model_type")
        if family not in FAMILIES:
            raise ModelError(f"model_type {family!r} is not supported; supported: {', '.join(FAMILIES)}")
        _refuse_unsupported(raw)
        heads, hidden = _size(raw, "num_attention_heads"), _size(raw, "hidden_size")
        config = cls(
            family=family,
            vocab_size=_size(raw, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_size(raw, "intermediate_size"),
            layers=_size(raw, "num_hidden_layers"),
            heads=heads,
            kv_heads=_size(raw, "num_key_value_heads", heads),
            head_dim=_size(raw, "head_dim", hidden // heads),
            max_position=_size(raw, "max_position_embeddings"),
            rope=_rope(raw),
            norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            tied=bool(raw.get("tie_word_embeddings", False)),
            attention_bias=family == "qwen2" or bool(raw.get("attention_bias", False)),
            mlp_bias=bool(raw.get("mlp_bias", False)),
            eos_ids=_ids((generation or {}).get("eos_token_id")) or _ids(raw.get("eos_token_id")),
            bos_id=next(iter(_ids(raw.get("bos_token_id"))), None),
            stored_dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch."),
        )
        config._check()
        return config

    def _check(self) -> None:
        if self.heads % self.kv_heads:
            raise ModelError(f"{self.heads} attention heads cannot share {self.kv_heads} key/value heads evenly")
        if self.head_dim % 2:
            raise ModelError(f"head_dim {self.head_dim} is odd, but rotary embedding turns pairs of channels")
        for token in self.eos_ids:
            if not 0 <= token < self.vocab_size:
                raise ModelError(f"eos_token_id {token} is outside the vocabulary of {self.vocab_size}")


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return content


def _size(raw: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = raw.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{key} must be a positive integer, got {value!r}")
    return value


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)


def _rope(raw: Mapping[str, Any]) -> Rope:
    # Newer files put everything into rope_parameters; older ones have rope_theta beside an optional rope_scaling.
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in ROPE_KINDS:
        raise ModelError(f"rope_type {kind!r} is not supported; supported: {', '.join(ROPE_KINDS)}")
    if float(scaling.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ModelError("partial_rotary_factor other than 1 is not supported")
    if kind == "default":
        return Rope(theta)
    try:
        if kind == "linear":
            return Rope(theta, kind, float(scaling["factor"]))
        return Rope(
            theta,
            kind,
            float(scaling["factor"]),
            float(scaling["low_freq_factor"]),
            float(scaling["high_freq_factor"]),
            int(scaling["original_max_position_embeddings"]),
        )
    except KeyError as error:
        raise ModelError(f"rope_type {kind!r} needs {error.args[0]!r}") from None


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    """Features that would be silently wrong if they were ignored."""
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelError(f"hidden_act {raw['hidden_act']!r} is not supported; supported: silu")
    if raw.get("quantization_config"):
        raise ModelError("quantization_config is not supported; use the unquantised weights or a GGUF file")
    if raw.get("use_sliding_window") or "sliding_attention" in (raw.get("layer_types") or ()):
        raise ModelError("sliding-window attention is not supported")
