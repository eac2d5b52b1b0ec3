"""A configuration is read in old and new spelling, and what is not supported is refused by name."""

import json

import pytest

from ssd.layers.rope import Rope
from ssd.models.config import ModelConfig
from ssd.models.errors import ModelError
from tests.toy import make_toy

RAW = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "eos_token_id": 7,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def test_absent_fields_take_the_formats_defaults():
    config = ModelConfig.from_dict(RAW)
    assert (config.kv_heads, config.head_dim, config.tied, config.rope) == (4, 16, False, Rope(10000.0))


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
    ],
)
def test_rope_scaling_is_read_in_every_spelling(spelling):
    assert ModelConfig.from_dict(RAW | spelling).rope == Rope(5e5, "llama3", 8.0, 1.0, 4.0, 8192)


def test_every_end_of_sequence_id_of_the_generation_config_counts(tmp_path):
    path = make_toy(tmp_path, eos=[257, 259, 3])
    assert ModelConfig.from_directory(path).eos_ids == (257, 259, 3)
    (path / "generation_config.json").unlink()
    assert ModelConfig.from_directory(path).eos_ids == (257,)


def test_qwen2_always_has_a_bias_on_query_key_and_value():
    assert ModelConfig.from_dict(RAW | {"model_type": "qwen2"}).attention_bias


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported; supported: llama, qwen2, qwen3"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "needs 'low_freq_factor'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"hidden_size": None}, "hidden_size must be a positive integer, got None"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer, got 0"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
        ({"eos_token_id": 320}, "eos_token_id 320 is outside the vocabulary of 320"),
    ],
)
def test_what_is_not_supported_is_named(change, message):
    with pytest.raises(ModelError, match=message):
        ModelConfig.from_dict(RAW | change)


def test_a_directory_that_is_no_model_is_refused(tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        ModelConfig.from_directory(tmp_path / "absent")
    with pytest.raises(ModelError, match=r"no config\.json"):
        ModelConfig.from_directory(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read as JSON"):
        ModelConfig.from_directory(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(RAW | {"model_type": "bert"}))
    with pytest.raises(ModelError, match=r"config\.json: model_type 'bert'"):
        ModelConfig.from_directory(tmp_path)
