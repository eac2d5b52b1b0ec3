"""A loaded model with everything that it needs to run."""

from ssd.config import EngineConfig
from ssd.layers.backends import attention_backend
from ssd.models.loader import LoadedModel
from ssd.runtime.blocks import BlockPool
from ssd.runtime.kv_cache import KVCache
from ssd.runtime.runner import ModelRunner


def make_runner(loaded: LoadedModel, engine: EngineConfig) -> tuple[ModelRunner, BlockPool]:
    """A runner with a KV cache of `engine.kv_tokens`, and the pool that hands out its blocks."""
    blocks = engine.kv_tokens // engine.block_size
    backend = attention_backend("auto", loaded.device, deterministic=loaded.deterministic)
    kv = KVCache.allocate(loaded, blocks=blocks, block_size=engine.block_size)
    return ModelRunner(loaded.model, loaded.config, kv, backend), BlockPool(blocks, engine.block_size)
