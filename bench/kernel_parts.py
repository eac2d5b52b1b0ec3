"""The parts of a model step, each with the bytes that it cannot avoid, timed as torch computes it and as we do."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice

import torch
from torch.nn import functional

from bench.kernel_timing import Call, copies, microseconds
from ssd.kernels.cases import AttentionCase, Heads, Setting, branch_case, sequence_case
from ssd.kernels.draw import draw_ids
from ssd.kernels.ops import TritonOps
from ssd.layers.attention import AttentionContext
from ssd.layers.attention_triton import TritonAttention
from ssd.layers.ops import Ops, TorchOps

LINEARS = {
    "32B qkv": (10240, 5120),
    "32B o": (5120, 8192),
    "32B gate-up": (51200, 5120),
    "32B down": (5120, 25600),
    "32B head": (151936, 5120),
    "8B qkv": (6144, 4096),
    "8B o": (4096, 4096),
    "8B gate-up": (28672, 4096),
    "8B down": (4096, 14336),
    "8B head": (128256, 4096),
    "1B qkv": (3072, 2048),
    "1B o": (2048, 2048),
    "1B gate-up": (16384, 2048),
    "1B down": (2048, 8192),
    "1B head": (128256, 2048),
    "0.6B qkv": (4096, 1024),
    "0.6B o": (1024, 2048),
    "0.6B gate-up": (6144, 1024),
    "0.6B down": (1024, 3072),
    "0.6B head": (151936, 1024),
}
"""Weights [out, in] of the models that performance is measured with."""
ROWS = (1, 8, 24, 32)
CONTEXTS = (1024, 8192, 32768)
HEADS = {"32B": Heads(64, 8, 128), "1B": Heads(32, 8, 64), "0.6B": Heads(16, 8, 128)}
BRANCHES, DEPTH, BLOCK_SIZE = 24, 7, 16
VOCAB = 151936
_BF16 = torch.bfloat16


@dataclass(frozen=True)
class Timing:
    """One row of the table: microseconds of torch (None: not measured) and of ours, and bytes that have to move."""

    part: str
    setting: str
    moved: int
    torch_us: float | None
    ours_us: float

    def floor_us(self, bandwidth: float) -> float:
        """Microseconds of moving the bytes at `bandwidth` bytes per second."""
        return self.moved / bandwidth * 1e6


Part = Callable[[torch.device, bool], Iterator[Timing]]
"""A group of rows; the flag says whether our kernels are launched early."""


def linears(device: torch.device, early: bool, only: str = "") -> Iterator[Timing]:
    """Every product with `only` in its name, at every number of rows."""
    ours, reference = TritonOps(device, early=early), TorchOps()
    for name, (outputs, inputs) in LINEARS.items():
        if only not in name:
            continue
        weights = make_weights(outputs, inputs, device)
        for rows in ROWS:
            x = torch.randn(rows, inputs, dtype=_BF16, device=device)
            moved = 2 * (outputs * inputs + rows * (outputs + inputs))
            yield Timing(
                f"linear {name}",
                f"{outputs}x{inputs} M={rows}",
                moved,
                microseconds([partial(reference.linear, x, weight, None) for weight in weights]),
                microseconds([partial(ours.linear, x, weight, None) for weight in weights]),
            )


def make_weights(outputs: int, inputs: int, device: torch.device) -> list[torch.Tensor]:
    """Weights of one shape that take turns."""
    count = copies(2 * outputs * inputs)
    return [torch.randn(outputs, inputs, dtype=_BF16, device=device) / inputs**0.5 for _ in range(count)]


def attention(device: torch.device, early: bool) -> Iterator[Timing]:
    """Decoding and verification of the 32B shape; torch attends over keys that lie in order and need no gathering."""
    heads = HEADS["32B"]
    backend = TritonAttention(early=early)
    for context in CONTEXTS:
        for batch in (1, 8, 32):
            for queries in (1, 7):
                setting = Setting(heads, BLOCK_SIZE, _BF16, device)
                case = sequence_case(setting, [(queries, context)] * batch)
                moved = batch * context * kv_bytes(heads)
                caches = rotated(case, moved)
                read = [partial(backend.read, case.q, k, v, captured(case, queries)) for k, v in caches]
                yield Timing(
                    "attention 32B",
                    f"b={batch} q={queries} context={context}",
                    moved,
                    _sdpa_time(case, batch, queries, context, len(caches)),
                    microseconds(read),
                )


def branches(device: torch.device, early: bool) -> Iterator[Timing]:
    """Branches of one trunk, at the last depth of a table."""
    backend = TritonAttention(early=early)
    for name in ("0.6B", "1B"):
        heads = HEADS[name]
        for context in CONTEXTS:
            setting = Setting(heads, BLOCK_SIZE, _BF16, device)
            case = branch_case(setting, [[(context - i % 7, DEPTH) for i in range(BRANCHES)]])
            moved = (context + BRANCHES * DEPTH) * kv_bytes(heads)
            read = [partial(backend.read, case.q, k, v, case.ctx) for k, v in rotated(case, moved)]
            yield Timing(f"branches {name}", f"{BRANCHES} branches context={context}", moved, None, microseconds(read))


def captured(case: AttentionCase, queries: int) -> AttentionContext:
    """The context as a captured step has it: no lengths from the host."""
    return replace(case.ctx, most_queries=queries, query_lens=(), key_lens=())


def kv_bytes(heads: Heads) -> int:
    """Bytes of one position's key and value in 16 bit."""
    return 2 * heads.kv * heads.dim * 2


def rotated(case: AttentionCase, moved: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Caches that take turns, as layers do."""
    more = copies(moved) - 1
    return [
        (case.cache_k, case.cache_v),
        *((case.cache_k.clone(), case.cache_v.clone()) for _ in range(more)),
    ]


def _sdpa_time(case: AttentionCase, batch: int, queries: int, context: int, layers: int) -> float:
    heads, dim = case.cache_k.shape[1:]
    q = case.q.reshape(batch, queries, -1, dim).transpose(1, 2).contiguous()
    shape = (batch, heads, context, dim)
    pairs = [[torch.randn(shape, dtype=_BF16, device=q.device) for _ in range(2)] for _ in range(layers)]
    return microseconds([partial(functional.scaled_dot_product_attention, q, k, v, enable_gqa=True) for k, v in pairs])


def rows_between(device: torch.device, early: bool) -> Iterator[Timing]:
    """Norms, SiLU, rotation, and rotation that also writes the cache."""
    own = TritonOps(device, early=early)
    for name, hidden, inner, heads in (
        ("32B", 5120, 25600, HEADS["32B"]),
        ("0.6B", 1024, 3072, HEADS["0.6B"]),
    ):
        for rows in (1, 24):
            yield from _row_timings(name, hidden, inner, heads, rows, own, device)


def _row_timings(
    name: str, hidden: int, inner: int, heads: Heads, rows: int, own: TritonOps, device: torch.device
) -> Iterator[Timing]:
    def make(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=_BF16, device=device)

    width = (heads.query + 2 * heads.kv) * heads.dim
    x, residual, weight = make(rows, hidden), make(rows, hidden), make(hidden)
    gate_up, qkv, norm = make(rows, 2 * inner), make(rows, width), make(heads.dim)
    cos_sin = torch.randn(rows, heads.dim, device=device)
    cache = make(1024, heads.kv, heads.dim)
    slots = torch.arange(rows, device=device)
    turned = (qkv, cos_sin, heads.query, heads.kv, norm, norm, 1e-6)
    parts: list[tuple[str, int, Callable[[Ops], object]]] = [
        ("rms_norm", 2 * rows * hidden, lambda ops: ops.rms_norm(x, weight, 1e-6)),
        ("add_rms_norm", 4 * rows * hidden, lambda ops: ops.add_rms_norm(x, residual, weight, 1e-6)),
        ("silu_mul", 3 * rows * inner, lambda ops: ops.silu_mul(gate_up)),
        ("turn", 2 * rows * width, lambda ops: ops.turn(*turned)),
    ]
    for part, numbers, work in parts:
        times = [microseconds(list(islice(cycle([partial(work, ops)]), 32))) for ops in (TorchOps(), own)]
        yield Timing(f"{part} {name}", f"M={rows}", 2 * numbers, times[0], times[1])
    written: list[Call] = [partial(own.turn_and_write, *turned, cache, cache, slots)] * 32
    yield Timing(f"turn_and_write {name}", f"M={rows}", 4 * rows * width, None, microseconds(written))


def draws(device: torch.device, early: bool) -> Iterator[Timing]:
    """Drawing from the logits of a vocabulary of 151,936."""
    for rows in (1, 8, 24):
        logits = [torch.randn(rows, VOCAB, device=device).to(_BF16) * 3 for _ in range(copies(2 * rows * VOCAB))]
        seeds, positions = (torch.arange(rows, device=device) for _ in range(2))
        for kind, value in (("greedy", 0.0), ("T=0.7", 0.7)):
            temperature = torch.full((rows,), value, dtype=torch.float64, device=device)
            for count in (1, 8):
                calls = [partial(draw_ids, x, seeds, positions, temperature, count=count) for x in logits]
                argmax = [partial(torch.argmax, x, dim=-1) for x in logits] if (value, count) == (0.0, 1) else None
                yield Timing(
                    "draw",
                    f"N={rows} {kind} count={count}",
                    2 * rows * VOCAB,
                    None if argmax is None else microseconds(argmax),
                    microseconds(calls),
                )


PARTS: dict[str, Part] = {
    "attention": attention,
    "branches": branches,
    "rows": rows_between,
    "draw": draws,
}


def timings(device: torch.device, names: Sequence[str], only: str, early: bool) -> Iterator[Timing]:
    """The rows of the named parts, in order, each as soon as it is measured; of the products those with `only` in
    their name."""
    for name in names:
        yield from linears(device, early, only) if name == "linear" else PARTS[name](device, early)
        torch.cuda.empty_cache()
