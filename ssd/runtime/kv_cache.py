"""Storage of keys and values: per layer one tensor of slots, block b being slots b * block_size onwards."""

from dataclasses import dataclass

import torch

from ssd.layers.linear import local_kv_heads
from ssd.models.config import ModelConfig
from ssd.models.loader import LoadedModel


@dataclass(frozen=True)
class KVCache:
    """keys[layer], values[layer]: [blocks * block_size, Hkv of this rank, head_dim] in the model's dtype."""

    blocks: int
    block_size: int
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]

    @classmethod
    def allocate(cls, loaded: LoadedModel, *, blocks: int, block_size: int = 16) -> "KVCache":
        """A cache for this model on its device; ValueError where a size is not positive."""
        if blocks < 1 or block_size < 1:
            raise ValueError(f"KV cache needs positive sizes, got {blocks} blocks of {block_size}")
        shape = (blocks * block_size, *_slot_shape(loaded.config, loaded.shard.size))
        # Zeros, not empty: masked keys are multiplied by zero, which only stays zero where they are finite.
        keys, values = (
            tuple(torch.zeros(shape, dtype=loaded.dtype, device=loaded.device) for _ in range(loaded.config.layers))
            for _ in range(2)
        )
        return cls(blocks, block_size, keys, values)


def block_bytes(loaded: LoadedModel, block_size: int) -> int:
    """Bytes of one block over all layers, keys and values, on this rank."""
    heads, dim = _slot_shape(loaded.config, loaded.shard.size)
    return 2 * loaded.config.layers * block_size * heads * dim * loaded.dtype.itemsize


def _slot_shape(config: ModelConfig, ranks: int) -> tuple[int, int]:
    return local_kv_heads(config.kv_heads, ranks), config.head_dim
