"""Qwen3 dense."""

from ssd.layers.build import Build
from ssd.models.config import ModelConfig
from ssd.models.decoder import CausalLM, SelfAttention


class Qwen3ForCausalLM(CausalLM):
    """Llama with queries and keys normalised per head before the rotation."""

    def attention(self, config: ModelConfig, layer: int, build: Build) -> SelfAttention:
        bias = config.attention_bias
        return SelfAttention(config, layer, build, qkv_bias=bias, out_bias=bias, head_norm=True)
