"""Frequencies equal transformers', and rotation depends on distance only."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ssd.layers.build import Build
from ssd.layers.ops import rotate
from ssd.layers.rope import Rope
from ssd.layers.rotary import RotaryTable, inverse_frequencies

LLAMA_31 = Rope(500000.0, "llama3", 8.0, 1.0, 4.0, 8192)
LLAMA_32 = Rope(500000.0, "llama3", 32.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize("rope", [LLAMA_31, LLAMA_32, Rope(10000.0, "linear", 4.0)])
def test_scaled_frequencies_equal_those_of_transformers(rope):
    parameters = {
        "rope_type": rope.kind,
        "rope_theta": rope.theta,
        "factor": rope.factor,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "original_max_position_embeddings": rope.original_max_position,
    }
    if rope.kind == "linear":
        parameters = {key: parameters[key] for key in ("rope_type", "rope_theta", "factor")}
    config = LlamaConfig(
        hidden_size=1024, num_attention_heads=8, max_position_embeddings=131072, rope_parameters=parameters
    )
    expected, scale = ROPE_INIT_FUNCTIONS[rope.kind](config, torch.device("cpu"))
    assert scale == 1.0
    torch.testing.assert_close(inverse_frequencies(rope, 128), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_scores_depend_on_distance_only(dtype):
    table = RotaryTable(Rope(), 16, 64, Build(dtype=dtype))
    q, k = torch.randn(1, 2, 16, dtype=dtype), torch.randn(1, 2, 16, dtype=dtype)

    def score(i, j):
        turned = rotate(q, table(torch.tensor([i]))) * rotate(k, table(torch.tensor([j])))
        assert turned.dtype == dtype
        return turned.double().sum(-1)

    tolerance = 0.1 if dtype is torch.bfloat16 else 1e-4
    torch.testing.assert_close(score(5, 2), score(40, 37), rtol=0, atol=tolerance)
