"""Qwen2 and Qwen2.5 dense."""

from ssd.layers.build import Build
from ssd.models.config import ModelConfig
from ssd.models.decoder import CausalLM, SelfAttention


class Qwen2ForCausalLM(CausalLM):
    """Llama with a bias on query, key and value, and none on the output."""

    def attention(self, config: ModelConfig, layer: int, build: Build) -> SelfAttention:
        return SelfAttention(config, layer, build, qkv_bias=True, out_bias=False)
