"""Step times of models of given shapes with random weights, against what reading the weights takes.

    python -m bench.step --json step.json

Runs on a GPU, without any checkpoint. GPU time is that of one replayed step between events; host time is what the wall
clock shows beyond it when steps are packed, run and their ids fetched one after the other.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ssd.config import EngineConfig
from ssd.layers.backends import attention_backend
from ssd.layers.build import Build
from ssd.layers.ops import make_ops
from ssd.layers.rope import Rope
from ssd.layers.rows import AllRows, RowTiles
from ssd.layers.shard import Shard
from ssd.models.config import ModelConfig
from ssd.models.loader import DETERMINISTIC_TILE, LoadedModel
from ssd.models.registry import build_model
from ssd.runtime.assembly import make_runner
from ssd.runtime.blocks import BlockPool, BlockTable
from ssd.runtime.device import resolve_dtype
from ssd.runtime.runner import BranchItem, ModelRunner, PlainDraw, RunRow
from ssd.runtime.step_sizes import Demand

COPY_BYTES_PER_S = 4.3e12
"""One H200, measured: the floor of a step is the bytes of its weights at this speed."""
CONTEXT = 1024
K, BRANCHES, SEGMENTS = 6, 21, (3, 3)
"""The table: depths between the sendings of an anytime table of six tokens."""
REPEATS, STEPS = 5, 10

SHAPES = {
    "qwen3-32b": ("qwen3", 151936, 5120, 25600, 64, 64, 8, 128, False),
    "llama-3.1-8b": ("llama", 128256, 4096, 14336, 32, 32, 8, 128, False),
    "llama-3.2-1b": ("llama", 128256, 2048, 8192, 16, 32, 8, 64, True),
    "qwen3-0.6b": ("qwen3", 151936, 1024, 3072, 28, 16, 8, 128, True),
}


@dataclass
class Timing:
    """One kind of step. Milliseconds; kernels are (name, calls a step, microseconds a step)."""

    what: str
    gpu_ms: float
    wall_ms: float
    floor_ms: float
    kernels: list[tuple[str, float, float]] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return self.gpu_ms / self.floor_ms

    @property
    def host_ms(self) -> float:
        return self.wall_ms - self.gpu_ms


@dataclass
class Bench:
    """A model of one shape, and the pieces that its steps are made of."""

    runner: ModelRunner
    pool: BlockPool
    floor_ms: float

    def table(self, tokens: int) -> BlockTable:
        table = BlockTable(self.pool)
        table.ensure(tokens)
        return table

    def rows(self, count: int, queries: int, table_tokens: int = CONTEXT) -> list[RunRow]:
        """Rows that end at the context's last token, with logits for all of their tokens."""
        start = CONTEXT - queries
        return [RunRow(list(range(queries)), start, self.table(table_tokens), queries) for _ in range(count)]

    def items(self, count: int, depth: int) -> list[BranchItem]:
        """Branches of one trunk that have their first token, and slots for `depth`."""
        trunk, items = self.table(CONTEXT), []
        for number in range(count):
            slots = self.table(depth).slots(0, depth)
            items.append(BranchItem(number, CONTEXT, trunk, CONTEXT, slots[:1], slots[1:]))
        return items


def random_model(name: str, dtype: torch.dtype, device: torch.device, given: argparse.Namespace) -> LoadedModel:
    """A model of this shape, made on the device."""
    family, vocab, hidden, inner, layers, heads, kv_heads, dim, tied = SHAPES[name]
    config = ModelConfig(family, vocab, hidden, inner, layers, heads, kv_heads, dim, 8192, Rope(1e6), tied=tied)
    rows = RowTiles(DETERMINISTIC_TILE) if given.deterministic else AllRows()
    ops = make_ops("torch" if given.compile else "auto", device, dtype, early=given.early)
    model = build_model(config, Build(dtype, device, Shard(), rows, ops))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(std=0.02)
    return LoadedModel(model.eval(), config, dtype, device, Shard())


def weight_bytes(loaded: LoadedModel) -> int:
    """Bytes of the weights that a step reads: all but an embedding of which only rows are looked up."""
    total = sum(parameter.nbytes for parameter in loaded.model.parameters())
    return total if loaded.config.tied else total - loaded.model.model.embed_tokens.weight.nbytes


def draws(count: int, temperature: float = 0.7) -> list[PlainDraw]:
    return [PlainDraw(number, CONTEXT, temperature) for number in range(count)]


def wall_ms(work: Callable[[], object]) -> float:
    """Median over repeats of the mean of several calls, each of which waits for its result."""
    work()
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        for _ in range(STEPS):
            work()
        times.append((time.perf_counter() - begun) / STEPS)
    return statistics.median(times) * 1e3


def gpu_ms(work: Callable[[], object]) -> float:
    """The same on the GPU's clock, calls following one another without the host."""
    work()
    times = []
    for _ in range(REPEATS):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(STEPS):
            work()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / STEPS)
    return statistics.median(times)


def top_kernels(work: Callable[[], object], most: int) -> list[tuple[str, float, float]]:
    """The kernels that take longest in one call."""
    calls = 3
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(calls):
            work()
        torch.cuda.synchronize()
    found = [(one.key, one.count / calls, one.self_device_time_total / calls) for one in profile.key_averages()]
    return sorted(((n[:60], c, t) for n, c, t in found if t > 0), key=lambda one: -one[2])[:most]


def step_timings(bench: Bench, kernels: int) -> list[Timing]:
    """Steps of 1, 8, 24 and 32 tokens, and one of 24 branches."""
    fast, results = bench.runner.fast, []
    if fast is None:
        raise SystemExit("this needs a GPU and an attention that can be captured")
    for rows, queries in ((1, 1), (1, 8), (3, 8), (4, 8)):
        step_rows, asked = bench.rows(rows, queries), draws(rows * queries)
        with torch.inference_mode():
            ran = fast.run(step_rows, asked)
            if ran is None:
                continue
            wall = wall_ms(lambda step_rows=step_rows, asked=asked: bench.runner.step(step_rows, asked))  # type: ignore[misc]
            name = f"{rows * queries} tokens ({rows} x {queries})"
            timing = Timing(name, gpu_ms(ran.step.run), wall, bench.floor_ms, top_kernels(ran.step.run, kernels))
        results.append(timing)
        release(row.table for row in step_rows)
    items = bench.items(24, K)
    with torch.inference_mode():
        grown = fast.grow(items, draws(24))
        if grown is not None:
            wall = wall_ms(lambda: bench.runner.grow(items, draws(24)))
            kernel_times = top_kernels(grown.step.run, kernels)
            results.append(Timing("24 branches", gpu_ms(grown.step.run), wall, bench.floor_ms, kernel_times))
    return results


def table_ms(bench: Bench) -> float:
    """One outcome table from the host's view: its root, and the depths between the sendings."""
    (root,), items = bench.rows(1, K + 1), bench.items(BRANCHES, K)

    def make() -> None:
        bench.runner.step([root], draws(K + 1), 17)
        left = items
        for depths in SEGMENTS:
            ids = bench.runner.grow_on(left, draws(BRANCHES), depths)
            if ids is None:
                raise SystemExit("there is no size for the table")
            left = [further(item, token, depths) for item, token in zip(left, ids[-1], strict=True)]

    return wall_ms(make)


def further(item: BranchItem, token: int, depths: int) -> BranchItem:
    """The branch `depths` tokens later."""
    slots = [*item.suffix_slots, *item.later_slots]
    own = len(item.suffix_slots) + depths
    return BranchItem(max(0, token), item.position + depths, item.trunk, item.prefix_len, slots[:own], slots[own:])


def proposal_ms(bench: Bench) -> float:
    """A just-in-time proposal of K tokens behind two new ones."""
    row = RunRow([1, 2], CONTEXT - 2, bench.table(CONTEXT + K))
    return wall_ms(lambda: bench.runner.draft([row], draws(1), K))


def release(tables: Any) -> None:
    for table in tables:
        table.release()


def measure(name: str, given: argparse.Namespace, kernels: int) -> dict[str, Any]:
    """Everything about one shape."""
    device = torch.device(given.device)
    dtype = resolve_dtype(given.dtype, device)
    torch.cuda.reset_peak_memory_stats(device)
    loaded = random_model(name, dtype, device, given)
    if given.compile:
        loaded.model.compile_layers()
    engine = EngineConfig(
        device=given.device,
        kv_tokens=32 * 1024,
        max_context=2048,
        attention=given.attention,
        cuda_graphs="off" if given.eager else "auto",
    )
    demand = Demand(queries=2 * K + 2, sequences=8, branches=24, depth=K, candidates=17, chain=K)
    backend = attention_backend(given.attention, device, deterministic=given.deterministic, early=given.early)
    runner, pool = make_runner(loaded, engine, demand, backend=backend)
    size = weight_bytes(loaded)
    bench = Bench(runner, pool, size / COPY_BYTES_PER_S * 1e3)
    timings = step_timings(bench, kernels)
    result = {
        "shape": name,
        "weight_gb": size / 1e9,
        "floor_ms": bench.floor_ms,
        "steps": [asdict(one) | {"ratio": one.ratio, "host_ms": one.host_ms} for one in timings],
        "table_ms": table_ms(bench),
        "proposal_ms": proposal_ms(bench),
        "peak_gib": torch.cuda.max_memory_allocated(device) / 2**30,
    }
    return result


def show(result: dict[str, Any]) -> None:
    print(f"\n{result['shape']}: {result['weight_gb']:.2f} GB of weights, floor {result['floor_ms']:.3f} ms")
    for one in result["steps"]:
        print(
            f"  {one['what']:<18} gpu {one['gpu_ms']:8.3f} ms  {one['ratio']:5.2f} x floor  "
            f"wall {one['wall_ms']:8.3f} ms  host {one['host_ms']:6.3f} ms"
        )
    print(f"  table K={K} B={BRANCHES}: {result['table_ms']:.3f} ms   proposal of {K}: {result['proposal_ms']:.3f} ms")
    for one in result["steps"]:
        print(f"  where {one['what']} goes:")
        for name, calls, micros in one["kernels"]:
            print(f"    {micros:9.1f} us  {calls:6.1f} x  {name}")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shape", action="append", choices=SHAPES, help="may be given several times; default: all")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--early", action="store_true", help="launch kernels while the one before still runs")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--kernels", type=int, default=8, help="kernels listed for each step")
    parser.add_argument("--limit-s", type=float, default=90.0, help="begin no further shape after so many seconds")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        raise SystemExit("bench.step needs a GPU")
    facts = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "command": " ".join(["python -m bench.step", *sys.argv[1:]]),
        "copy_bytes_per_s": COPY_BYTES_PER_S,
        "context": CONTEXT,
    }
    begun, results = time.monotonic(), []
    # The small ones first: a limit cuts off the one that takes longest.
    for name in given.shape or reversed(SHAPES):
        if time.monotonic() - begun > given.limit_s:
            print("time is up; shapes are missing", file=sys.stderr)
            break
        results.append(measure(name, given, given.kernels))
        show(results[-1])
        if given.json:
            given.json.write_text(json.dumps({**facts, "shapes": results}, indent=1))
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
