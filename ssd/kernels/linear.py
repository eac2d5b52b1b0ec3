"""x @ weight.T for few rows of x, bound by how fast the weight streams in.

The weight tile is the left operand, so that the tensor cores' long side lies along the outputs and x is padded only to
the next of 16, 32 or 64 rows. With several splits of the input width each program leaves its float32 sum in memory and
the last one to arrive adds them up in their order: no atomic additions of floats, so every run gives the same bits.

A row's sum is taken in the same order whatever the number of rows; only the height that x is padded to (16, 32, 64) and
with it the tensor cores' instruction differs, which may change the last bit. Calls of one height are batch invariant.
"""

# mypy: allow-untyped-defs
import torch
import triton
import triton.language as tl

from ssd.kernels.dependent import let_next_start, wait_for_previous
from ssd.kernels.tiles import LinearTile

MOST_ROWS = 64


@triton.jit(do_not_specialize=("rows",))
def skinny_linear(
    x,
    weight,
    bias,
    out,
    sums,
    arrivals,
    rows,
    x_stride,
    weight_stride,
    outputs: tl.constexpr,
    inputs: tl.constexpr,
    height: tl.constexpr,
    tile_outputs: tl.constexpr,
    tile_inputs: tl.constexpr,
    splits: tl.constexpr,
    biased: tl.constexpr,
    early: tl.constexpr,
):
    """Grid (outputs / tile_outputs, splits). x [rows, inputs], weight [outputs, inputs] → out [rows, outputs].

    sums float32 [tiles, splits, tile_outputs, height] · arrivals int32 [tiles], zero before and after.
    """
    let_next_start(early)
    tile, split = tl.program_id(0), tl.program_id(1)
    lane = tl.arange(0, tile_outputs)
    row = tl.arange(0, height)
    column = tl.arange(0, tile_inputs)
    output = tile * tile_outputs + lane
    # Rows past the end repeat others: their sums are not stored.
    source = output if outputs % tile_outputs == 0 else output % outputs
    x_row = tl.where(row < rows, row, 0)
    steps: tl.constexpr = (inputs + tile_inputs - 1) // tile_inputs
    share: tl.constexpr = (steps + splits - 1) // splits
    first = split * share
    last = tl.minimum(first + share, steps)
    weights = weight + source.to(tl.int64)[:, None] * weight_stride + column[None, :]
    values = x + x_row[None, :] * x_stride + column[:, None]
    acc = tl.zeros([tile_outputs, height], dtype=tl.float32)
    if early:
        # Weights depend on no kernel, so the first tile is on its way before the previous kernel has ended.
        known = (first * tile_inputs + column < inputs) & (first < last)
        w = tl.load(weights + first * tile_inputs, mask=known[None, :], other=0.0, eviction_policy="evict_first")
        wait_for_previous(early)
        acc = tl.dot(w, tl.load(values + first * tile_inputs, mask=known[:, None], other=0.0), acc)
        first += 1
    for step in range(first, last):
        start = step * tile_inputs
        if inputs % tile_inputs == 0:
            w = tl.load(weights + start, eviction_policy="evict_first")
            v = tl.load(values + start)
        else:
            known = start + column < inputs
            w = tl.load(weights + start, mask=known[None, :], other=0.0, eviction_policy="evict_first")
            v = tl.load(values + start, mask=known[:, None], other=0.0)
        acc = tl.dot(w, v, acc)

    finishing = True
    if splits > 1:
        place = lane[:, None] * height + row[None, :]
        own = sums + tile * (splits * tile_outputs * height) + place
        tl.store(own + split * (tile_outputs * height), acc)
        # All threads' sums are written before the arrival is counted.
        tl.debug_barrier()
        finishing = tl.atomic_add(arrivals + tile, 1, sem="acq_rel") == splits - 1
        if finishing:
            acc = tl.zeros([tile_outputs, height], dtype=tl.float32)
            for part in tl.static_range(splits):
                acc += tl.load(own + part * (tile_outputs * height), cache_modifier=".cg")
            tl.store(arrivals + tile, 0)
    if finishing:
        if biased:
            acc += tl.load(bias + source).to(tl.float32)[:, None]
        mask = (output < outputs)[:, None] & (row < rows)[None, :]
        tl.store(out + row[None, :].to(tl.int64) * outputs + output[:, None], acc.to(out.dtype.element_ty), mask=mask)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    arrivals: torch.Tensor,
    tile: LinearTile,
    *,
    early: bool = False,
) -> torch.Tensor:
    """x [T <= 64, in], weight [out, in] and bias [out] of one 16-bit dtype → [T, out].

    arrivals: int32 zeros, one for each tile of outputs; zeros again afterwards, and used by one stream at a time.
    """
    rows, (outputs, inputs) = x.shape[0], weight.shape
    height = max(16, triton.next_power_of_2(rows))
    tiles = -(-outputs // tile.outputs)
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    size = tiles * tile.splits * tile.outputs * height if tile.splits > 1 else 1
    sums = torch.empty(size, dtype=torch.float32, device=x.device)
    skinny_linear[(tiles, tile.splits)](
        x,
        weight,
        weight if bias is None else bias,
        out,
        sums,
        arrivals,
        rows,
        x.stride(0),
        weight.stride(0),
        outputs=outputs,
        inputs=inputs,
        height=height,
        tile_outputs=tile.outputs,
        tile_inputs=tile.inputs,
        splits=tile.splits,
        biased=bias is not None,
        early=early,
        num_warps=tile.warps,
        num_stages=tile.stages,
        launch_pdl=early,
    )
    return out
