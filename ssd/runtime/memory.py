"""How much KV room a GPU has: what is left after the weights and the largest step, within this process's share."""

import math
from dataclasses import dataclass

from ssd.config import EngineConfig
from ssd.models.errors import ModelError
from ssd.models.loader import LoadedModel
from ssd.runtime.kv_cache import block_bytes
from ssd.runtime.step_sizes import Demand

GIB = 1 << 30
_APART = 3 * GIB // 2
"""For what a trial step does not show: captured graphs, attention over the longest contexts, libraries' workspaces."""
_OUTSIDE_TORCH = GIB // 2
"""The driver's own memory of one process."""
_LEAST_TOKENS = 2048


@dataclass(frozen=True)
class Measured:
    """Bytes: `total` of the device, `free` on it now, `held` by torch in this process, and `working` beyond that at the
    peak of the largest step."""

    total: int
    free: int
    held: int
    working: int


def kv_blocks(loaded: LoadedModel, engine: EngineConfig, demand: Demand, measured: Measured) -> int:
    """Blocks that the pool gets: as many as fit, but no more than all sequences at full length could use. ModelError
    where not even a short sequence fits."""
    size = block_bytes(loaded, engine.block_size)
    allowed = int(engine.memory_fraction * measured.total) - measured.held - _OUTSIDE_TORCH
    room = min(allowed, measured.free) - measured.working - _APART
    limit = loaded.config.max_position
    context = min(engine.max_context or limit, limit)
    a_sequence = -(-(context + demand.queries + demand.branches * demand.depth) // engine.block_size)
    least = min(a_sequence, -(-_LEAST_TOKENS // engine.block_size))
    if room // size < least:
        raise ModelError(
            f"no room for KV on {loaded.device}: weights and others of this process hold {gib(measured.held)}, the "
            f"largest step needs {gib(measured.working + _APART)} more and {least * engine.block_size} tokens of KV "
            f"{gib(least * size)}; of {gib(measured.total)} this process may use memory_fraction = "
            f"{engine.memory_fraction:g}, and {gib(measured.free)} are free. Raise memory_fraction, lower "
            f"token_budget, free the device, or choose a smaller model"
        )
    return min(room // size, engine.max_sequences * a_sequence)


def gib(count: int) -> str:
    """Bytes for people."""
    return f"{math.ceil(count / GIB * 100) / 100:.2f} GiB"
