"""Between two steps of a chain, in one kernel: see ssd.runtime.advancing, whose reference takes twenty small ones."""

# mypy: allow-untyped-defs
from collections.abc import Mapping

import torch
import triton
import triton.language as tl


@triton.jit
def next_tokens(ids, positions, draw_positions, results, step, lane, live, tokens, count, last_position):
    """The drawn ids become the next tokens; their positions [block] are returned."""
    number = tl.load(step)
    drawn = tl.load(results + (number * tokens + lane) * count, mask=live, other=0)
    position = tl.minimum(tl.load(positions + lane, mask=live, other=0) + 1, last_position)
    tl.store(ids + lane, tl.maximum(drawn, 0), mask=live)
    tl.store(positions + lane, position, mask=live)
    tl.store(draw_positions + lane, tl.load(draw_positions + lane, mask=live, other=0) + 1, mask=live)
    # All threads have read the number of the step before it becomes the next.
    tl.debug_barrier()
    tl.store(step, number + 1)
    return position


@triton.jit
def advance_rows(
    ids,
    positions,
    draw_positions,
    slots,
    step,
    context_lens,
    tables,
    results,
    last_position,
    tokens: tl.constexpr,
    count: tl.constexpr,
    width: tl.constexpr,
    block_size: tl.constexpr,
    block: tl.constexpr,
):
    """Grid (1), int64 throughout; tables [tokens, width], results [chain, tokens, count]."""
    lane = tl.arange(0, block)
    live = lane < tokens
    position = next_tokens(ids, positions, draw_positions, results, step, lane, live, tokens, count, last_position)
    held = tl.minimum(position // block_size, width - 1)
    slot = tl.load(tables + lane * width + held, mask=live, other=0) * block_size + position % block_size
    before = tl.load(slots + lane, mask=live, other=-1)
    tl.store(slots + lane, tl.where(before < 0, -1, slot), mask=live)
    seen = tl.load(context_lens + lane, mask=live, other=0)
    tl.store(context_lens + lane, tl.where(seen > 0, position + 1, 0), mask=live)


@triton.jit
def advance_branches(
    ids,
    positions,
    draw_positions,
    slots,
    step,
    suffix_lens,
    slots_held,
    suffix_slots,
    results,
    last_position,
    tokens: tl.constexpr,
    count: tl.constexpr,
    depth: tl.constexpr,
    block: tl.constexpr,
):
    """Grid (1), int64 throughout; suffix_slots [tokens, depth], results [chain, tokens, count]."""
    lane = tl.arange(0, block)
    live = lane < tokens
    next_tokens(ids, positions, draw_positions, results, step, lane, live, tokens, count, last_position)
    held = tl.load(slots_held + lane, mask=live, other=0)
    grown = tl.load(suffix_lens + lane, mask=live, other=0) + 1
    kept = tl.minimum(grown, held)
    slot = tl.load(suffix_slots + lane * depth + tl.maximum(kept - 1, 0), mask=live, other=-1)
    tl.store(suffix_lens + lane, kept, mask=live)
    tl.store(slots + lane, tl.where(grown <= held, slot, -1), mask=live)


class TritonAdvance:
    """Advance (ssd.runtime.advancing) in one kernel."""

    def rows(
        self, there: Mapping[str, torch.Tensor], results: torch.Tensor, block_size: int, last_position: int
    ) -> None:
        """One token to each row."""
        _, tokens, count = results.shape
        advance_rows[(1,)](
            *_common(there),
            there["context_lens"],
            there["tables"],
            results,
            last_position,
            tokens=tokens,
            count=count,
            width=there["tables"].shape[1],
            block_size=block_size,
            block=triton.next_power_of_2(tokens),
        )

    def branches(self, there: Mapping[str, torch.Tensor], results: torch.Tensor, last_position: int) -> None:
        """One token to each branch."""
        _, tokens, count = results.shape
        advance_branches[(1,)](
            *_common(there),
            there["suffix_len"],
            there["slots_held"],
            there["suffix_slots"],
            results,
            last_position,
            tokens=tokens,
            count=count,
            depth=there["suffix_slots"].shape[1],
            block=triton.next_power_of_2(tokens),
        )


def _common(there: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(there[name] for name in ("ids", "positions", "draw_positions", "slots", "step"))
