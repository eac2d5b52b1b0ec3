"""What a GPU's attention kernels see: tensors alone, no lengths on the host. In plain torch, row by row."""

import torch
from torch.nn import functional

from ssd.layers.attention import AttentionContext
from ssd.runtime.draws import reference_ids
from ssd.runtime.fast_steps import FastSteps
from ssd.runtime.graphs import Eager
from ssd.runtime.heads import head_of
from ssd.runtime.runner import ModelRunner
from ssd.runtime.static_step import Shared
from ssd.runtime.step_sizes import Demand, StepSizes
from tests.ssd.engine import Engine

__all__ = ["DeviceAttention", "fast_engine", "reference_ids"]


class DeviceAttention:
    """AttentionBackend that reads the context's tensors only. Tokens of no row get zeros."""

    deterministic = True

    def attend(self, q, k, v, cache_k, cache_v, ctx: AttentionContext):
        written = ctx.slots >= 0
        cache_k[ctx.slots[written]], cache_v[ctx.slots[written]] = k[written], v[written]
        out = torch.zeros_like(q)
        for token, slots in enumerate(visible(ctx)):
            if len(slots):
                keys, values = (cache[slots].transpose(0, 1)[None] for cache in (cache_k, cache_v))
                keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (keys, values))
                out[token] = functional.scaled_dot_product_attention(q[token][None, :, None], keys, values)[0, :, 0]
        return out


def visible(ctx: AttentionContext) -> list[torch.Tensor]:
    """The slots that each token sees."""
    size, tokens = ctx.block_size, len(ctx.slots)
    seen = [torch.empty(0, dtype=torch.int64)] * tokens

    def prefix(row: int, count: int) -> torch.Tensor:
        positions = torch.arange(count)
        return ctx.block_tables[row][positions // size] * size + positions % size

    if ctx.branches is not None:
        rows = ctx.branches.trunk_row.tolist()
        assert rows == sorted(rows)
        for token, row in enumerate(rows):
            own = ctx.branches.suffix_slots[token, : int(ctx.branches.suffix_len[token])]
            assert bool((own >= 0).all())
            seen[token] = torch.cat([prefix(row, int(ctx.branches.prefix_len[token])), own])
        return seen
    starts = ctx.query_starts.tolist()
    for row, (first, stop) in enumerate(zip(starts, starts[1:], strict=False)):
        assert ctx.most_queries is None or stop - first <= ctx.most_queries
        for token in range(first, stop):
            seen[token] = prefix(row, int(ctx.context_lens[row]) - (stop - token) + 1)
    return seen


def fast_engine(loaded, *, blocks: int = 128, block_size: int = 8, executor=None, backend=None, **demand) -> Engine:
    """An engine whose runner has static steps, run eagerly unless `executor` captures them."""
    engine = Engine(loaded, blocks=blocks, block_size=block_size)
    wanted = Demand(**({"queries": 9, "sequences": 16, "branches": 32, "chain": 8} | demand))
    context = min(loaded.config.max_position, blocks * block_size)
    sizes = StepSizes.make(wanted, context=context, block_size=block_size, token_budget=128)
    head = head_of(loaded, wanted.vocab)
    with torch.inference_mode():
        scores = torch.zeros(sizes.most_tokens, head.width, dtype=loaded.dtype, device=loaded.device)
        shared = Shared(
            loaded.model,
            engine.kv,
            backend or DeviceAttention(),
            executor or Eager(),
            scores,
            head,
            wanted.chain,
            loaded.config.max_position,
        )
    fast = FastSteps(shared, sizes)
    engine.runner = ModelRunner(loaded.model, loaded.config, engine.kv, engine.runner.backend, fast)
    return engine
