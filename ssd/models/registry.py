"""model_type of a configuration → the class that runs it."""

from collections.abc import Mapping
from types import MappingProxyType

from ssd.layers.build import Build
from ssd.models.config import ModelConfig
from ssd.models.decoder import CausalLM
from ssd.models.llama import LlamaForCausalLM
from ssd.models.qwen2 import Qwen2ForCausalLM
from ssd.models.qwen3 import Qwen3ForCausalLM

MODELS: Mapping[str, type[CausalLM]] = MappingProxyType(
    {"llama": LlamaForCausalLM, "qwen2": Qwen2ForCausalLM, "qwen3": Qwen3ForCausalLM}
)


def build_model(config: ModelConfig, build: Build) -> CausalLM:
    """The model with uninitialised weights."""
    return MODELS[config.family](config, build)
