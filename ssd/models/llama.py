"""Llama 2, 3.x, SmolLM2 and other models of the same shape."""

from ssd.layers.build import Build
from ssd.models.config import ModelConfig
from ssd.models.decoder import CausalLM, SelfAttention


class LlamaForCausalLM(CausalLM):
    """Optional bias on all four attention products."""

    def attention(self, config: ModelConfig, layer: int, build: Build) -> SelfAttention:
        return SelfAttention(config, layer, build, qkv_bias=config.attention_bias, out_bias=config.attention_bias)
