"""A loaded model with everything that it needs to run."""

import time

import structlog
import torch

from ssd.config import EngineConfig
from ssd.errors import FieldError
from ssd.layers.attention import AttentionBackend
from ssd.layers.attention_torch import TorchAttention
from ssd.layers.backends import attention_backend
from ssd.models.errors import ModelError
from ssd.models.loader import LoadedModel
from ssd.runtime import memory
from ssd.runtime.blocks import BlockPool, BlockTable
from ssd.runtime.device import launches_early
from ssd.runtime.fast_steps import FastSteps
from ssd.runtime.graphs import CudaGraphs, Eager, Executor
from ssd.runtime.heads import head_of
from ssd.runtime.kv_cache import KVCache
from ssd.runtime.runner import ModelRunner, RunRow
from ssd.runtime.static_step import Shared
from ssd.runtime.step_sizes import Demand, StepSizes
from ssd.speculation.params import SamplingParams
from ssd.speculation.sampling import TokenHistory, draw, row_after

log = structlog.get_logger()
ANYTHING = Demand()


def make_runner(
    loaded: LoadedModel,
    engine: EngineConfig,
    demand: Demand = ANYTHING,
    *,
    prepare: bool = False,
    backend: AttentionBackend | None = None,
) -> tuple[ModelRunner, BlockPool]:
    """A runner with a KV cache of `engine.kv_tokens`, and the pool that hands out its blocks.

    On a GPU each size of steps is prepared when it is first met, or with `prepare` now: all that `demand` leads to.
    backend: the attention, where it is not to be the one that `engine` names.
    ModelError where memory does not suffice, FieldError for settings that the device cannot follow.
    """
    if backend is None:
        early = launches_early(engine.early_launch, loaded.device)
        backend = attention_backend(engine.attention, loaded.device, deterministic=loaded.deterministic, early=early)
    executor = executor_of(loaded, engine, backend)
    blocks = engine.kv_tokens // engine.block_size
    if not blocks:
        blocks = memory.kv_blocks(loaded, engine, demand, measured(loaded, engine, demand, backend))
        # Block tables are the same on all ranks, so the tightest of them decides.
        blocks = loaded.shard.least(blocks, loaded.device)
    try:
        kv = KVCache.allocate(loaded, blocks=blocks, block_size=engine.block_size)
    except torch.OutOfMemoryError:
        size = memory.gib(blocks * memory.block_bytes(loaded, engine.block_size))
        raise ModelError(f"{size} for kv_tokens = {blocks * engine.block_size} are not free: lower it") from None
    fast = None if executor is None else fast_steps(loaded, engine, demand, kv, backend, executor)
    head = head_of(loaded, demand.vocab) if loaded.shard.size > 1 else None
    runner = ModelRunner(loaded.model, loaded.config, kv, backend, fast, head)
    if fast is not None and prepare:
        started = time.monotonic()
        runner.prepare()
        log.info("steps prepared", sizes=fast.prepared, seconds=round(time.monotonic() - started, 1))
    return runner, BlockPool(blocks, engine.block_size)


def executor_of(loaded: LoadedModel, engine: EngineConfig, backend: AttentionBackend) -> Executor | None:
    """How repeated steps run; None where every step is packed for itself."""
    # The reference reads lengths on the host, and so does anything else in float64.
    on_gpu = loaded.device.type == "cuda"
    capturable = on_gpu and not isinstance(backend, TorchAttention) and loaded.dtype != torch.float64
    if engine.cuda_graphs == "on" and not capturable:
        raise FieldError("cuda_graphs", "needs a GPU, a dtype of 16 or 32 bits and an attention other than torch")
    if not capturable:
        return None
    return Eager() if engine.cuda_graphs == "off" else CudaGraphs(loaded.device)


def fast_steps(
    loaded: LoadedModel,
    engine: EngineConfig,
    demand: Demand,
    kv: KVCache,
    backend: AttentionBackend,
    executor: Executor,
) -> FastSteps:
    """Steps of one runner; none is prepared yet."""
    config = loaded.config
    context = min(engine.max_context or config.max_position, config.max_position, kv.blocks * kv.block_size)
    sizes = StepSizes.make(demand, context=context, block_size=kv.block_size, token_budget=engine.token_budget)
    head = head_of(loaded, demand.vocab)
    with torch.inference_mode():
        scores = torch.zeros(sizes.most_tokens, head.width, dtype=loaded.dtype, device=loaded.device)
    shared = Shared(loaded.model, kv, backend, executor, scores, head, demand.chain, config.max_position)
    return FastSteps(shared, sizes)


def measured(loaded: LoadedModel, engine: EngineConfig, demand: Demand, backend: AttentionBackend) -> memory.Measured:
    """What the largest step takes, by running one: a full token budget with as many draws, filtered, as it may hold."""
    device = loaded.device
    if device.type != "cuda":
        raise FieldError("kv_tokens", f"is 0, which is for a GPU; the model is on {device}")
    limit = min(loaded.config.max_position, engine.max_context or loaded.config.max_position)
    tokens = min(engine.token_budget, limit)
    draws = min(tokens, engine.max_sequences * demand.queries)
    blocks = -(-tokens // engine.block_size)
    try:
        kv = KVCache.allocate(loaded, blocks=blocks, block_size=engine.block_size)
        table = BlockTable(BlockPool(blocks, engine.block_size))
        table.ensure(tokens)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        runner = ModelRunner(loaded.model, loaded.config, kv, backend)
        logits = runner.run([RunRow([0] * tokens, 0, table, draws)])
        row = row_after(SamplingParams(top_p=0.9), TokenHistory([0]))
        # A random-weight model may have logits that nothing can be drawn from.
        draw(torch.nan_to_num(logits, 0.0, 0.0, 0.0), [row] * draws)
        working = torch.cuda.max_memory_allocated(device) - before
    except torch.OutOfMemoryError:
        free, total = torch.cuda.mem_get_info(device)
        raise ModelError(
            f"a step of token_budget = {engine.token_budget} tokens does not fit beside the weights: "
            f"{memory.gib(free)} of {memory.gib(total)} are free on {device}. Lower token_budget or max_sequences"
        ) from None
    del kv, runner, logits
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return memory.Measured(total, free, torch.cuda.memory_reserved(device), working)
