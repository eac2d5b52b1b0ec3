"""x @ weight.T for few rows of x, bound by how fast the weight streams in, with what surrounds it in a decoder layer.

The weight tile is the left operand, so that the tensor cores' long side lies along the outputs and x is padded only to
the next of 16, 32 or 64 rows. With several splits of the input width each program leaves its float32 sum in memory and
the last one to arrive adds them up in their order: no atomic additions of floats, so every run gives the same bits.

A row's sum is taken in the same order whatever the number of rows; only the height that x is padded to (16, 32, 64) and
with it the tensor cores' instruction differs, which may change the last bit. Calls of one height are batch invariant.

More rows are taken by 128 at a time (`tall_linear`), which reads the weight again for each: for where torch's own
products cannot be had.

A product may end in more than its result. With a Residual it adds the stream that flows past, and leaves the sum ready
for the next norm: times that norm's weight, with the sums of squares of each tile of outputs. What reads such an x
divides by the root mean square only behind the product, where it is one number a row. A gated product takes gate and
up together and leaves silu(gate) * up.
"""

# mypy: allow-untyped-defs
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from ssd.kernels.dependent import let_next_start, wait_for_previous
from ssd.kernels.tiles import TALL_TILE, LinearTile

MOST_ROWS = 64
TALL_ROWS = 128
_SQUARES_ROWS = tl.constexpr(MOST_ROWS)


@dataclass(frozen=True)
class Squares:
    """Sums of squares of a matrix's rows, by tiles of its columns: float32 [tiles, MOST_ROWS]. eps: of the norm."""

    sums: torch.Tensor
    eps: float


@dataclass(frozen=True)
class Residual:
    """What a product is added to: `stream` [T, out]; `norm` [out] is the weight of the norm that follows."""

    stream: torch.Tensor
    norm: torch.Tensor


@triton.jit(do_not_specialize=("rows",))
def skinny_linear(
    x,
    weight,
    bias,
    out,
    sums,
    arrivals,
    squares,
    stream,
    norm,
    total,
    total_squares,
    rows,
    x_stride,
    weight_stride,
    stream_stride,
    eps,
    outputs: tl.constexpr,
    inputs: tl.constexpr,
    height: tl.constexpr,
    tile_outputs: tl.constexpr,
    tile_inputs: tl.constexpr,
    splits: tl.constexpr,
    biased: tl.constexpr,
    square_tiles: tl.constexpr,
    gated: tl.constexpr,
    added: tl.constexpr,
    early: tl.constexpr,
):
    """Grid (outputs / tile_outputs, splits). x [rows, inputs], weight [outputs, inputs] → out [rows, outputs].

    sums float32 [tiles, splits, tile_outputs, height] · arrivals int32 [tiles], zero before and after.
    square_tiles > 0: rows are divided by the root mean square that `squares` [square_tiles, MOST_ROWS] give.
    gated: the weight is gate over up, and out [rows, outputs / 2].
    added: total = result + stream [rows, outputs], out = total * norm, total_squares [tiles, MOST_ROWS].
    """
    tile, split = tl.program_id(0), tl.program_id(1)
    lane = tl.arange(0, tile_outputs)
    row = tl.arange(0, height)
    column = tl.arange(0, tile_inputs)
    if gated:
        # Gate and up of one output lie side by side.
        pair = (tile * (tile_outputs // 2) + lane // 2) % (outputs // 2)
        source = (lane % 2) * (outputs // 2) + pair
    else:
        output = tile * tile_outputs + lane
        # Rows past the end repeat others: their sums are not stored.
        source = output if outputs % tile_outputs == 0 else output % outputs
    known_row = (row < rows)[None, :]
    steps: tl.constexpr = (inputs + tile_inputs - 1) // tile_inputs
    share: tl.constexpr = (steps + splits - 1) // splits
    first = split * share
    last = tl.minimum(first + share, steps)
    weights = weight + source.to(tl.int64)[:, None] * weight_stride + column[None, :]
    values = x + row[None, :] * x_stride + column[:, None]
    acc = tl.zeros([tile_outputs, height], dtype=tl.float32)
    wait_for_previous(early)
    let_next_start(early)
    if square_tiles > 0:
        # Asked for now, needed behind the products.
        square_sums = sums_of_squares(squares, row, square_tiles)
    for step in range(first, last):
        start = step * tile_inputs
        if inputs % tile_inputs == 0:
            w = tl.load(weights + start, eviction_policy="evict_first")
            v = tl.load(values + start, mask=known_row, other=0.0)
        else:
            known = start + column < inputs
            w = tl.load(weights + start, mask=known[None, :], other=0.0, eviction_policy="evict_first")
            v = tl.load(values + start, mask=known[:, None] & known_row, other=0.0)
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
        kind = out.dtype.element_ty
        if square_tiles > 0:
            acc *= (1.0 / tl.sqrt(tl.sum(square_sums, 0) / inputs + eps))[None, :]
        if biased:
            acc += tl.load(bias + source).to(tl.float32)[:, None]
        if gated:
            # [2 pairs, height] → gate and up [pairs, height], rounded where separate kernels would round.
            by_pair = tl.trans(tl.reshape(acc, (tile_outputs // 2, 2, height)), (0, 2, 1))
            gate, up = tl.split(by_pair)
            gate, up = gate.to(kind).to(tl.float32), up.to(kind).to(tl.float32)
            result = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32) * up
            there = tile * (tile_outputs // 2) + tl.arange(0, tile_outputs // 2)
            mask = (there < outputs // 2)[:, None] & (row < rows)[None, :]
            spot = row[None, :].to(tl.int64) * (outputs // 2) + there[:, None]
            tl.store(out + spot, result.to(kind), mask=mask)
        else:
            mask = (output < outputs)[:, None] & (row < rows)[None, :]
            spot = row[None, :].to(tl.int64) * outputs + output[:, None]
            if added:
                past = row[None, :].to(tl.int64) * stream_stride + output[:, None]
                acc = acc.to(kind).to(tl.float32) + tl.load(stream + past, mask=mask, other=0.0).to(tl.float32)
                rounded = acc.to(kind)
                tl.store(total + spot, rounded, mask=mask)
                acc = tl.where(mask, rounded.to(tl.float32), 0.0)
                tl.store(total_squares + tile * _SQUARES_ROWS + row, tl.sum(acc * acc, 0))
                acc *= tl.load(norm + source).to(tl.float32)[:, None]
            tl.store(out + spot, acc.to(kind), mask=mask)


@triton.jit
def sums_of_squares(squares, row, tiles: tl.constexpr):
    """[32, rows]: the sums of the tiles 0, 32, 64, ... of each row, of the tiles 1, 33, ..., in order."""
    tile = tl.arange(0, 32)
    places = squares + tile[:, None] * _SQUARES_ROWS + row[None, :]
    total = tl.load(places, mask=(tile < tiles)[:, None], other=0.0)
    for start in tl.static_range(32, tiles, 32):
        total += tl.load(places + start * _SQUARES_ROWS, mask=(start + tile < tiles)[:, None], other=0.0)
    return total


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    arrivals: torch.Tensor,
    tile: LinearTile,
    *,
    squares: Squares | None = None,
    gated: bool = False,
    early: bool = False,
) -> torch.Tensor:
    """x [T <= 64, in], weight [out, in] and bias [out] of one 16-bit dtype → [T, out], with `gated` [T, out / 2].

    arrivals: int32 zeros, one for each tile of outputs; zeros again afterwards, and used by one stream at a time.
    squares: of x's rows, by whose root mean square the result is divided.
    """
    width = weight.shape[0] // 2 if gated else weight.shape[0]
    out = torch.empty((x.shape[0], width), dtype=x.dtype, device=x.device)
    _launch(x, weight, bias, arrivals, tile, out, squares, gated, None, early)
    return out


def tall_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    arrivals: torch.Tensor,
    splits: int,
    *,
    early: bool = False,
) -> torch.Tensor:
    """`linear` for any number of rows: x [T, in] → [T, out]."""
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype, device=x.device)
    tile = replace(TALL_TILE, splits=splits)
    for first in range(0, x.shape[0], TALL_ROWS):
        rows = slice(first, first + TALL_ROWS)
        _launch(x[rows], weight, bias, arrivals, tile, out[rows], None, False, None, early)
    return out


def linear_into(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    arrivals: torch.Tensor,
    tile: LinearTile,
    residual: Residual,
    *,
    early: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The product added to a residual stream: the sum [T, out], the sum times the next norm's weight [T, out], and the
    sum's squares by tiles, float32 [tiles, MOST_ROWS]."""
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=x.dtype, device=x.device)
    total = torch.empty_like(out)
    sums = torch.empty((-(-weight.shape[0] // tile.outputs), MOST_ROWS), dtype=torch.float32, device=x.device)
    _launch(x, weight, bias, arrivals, tile, out, None, False, (residual, total, sums), early)
    return total, out, sums


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    arrivals: torch.Tensor,
    tile: LinearTile,
    out: torch.Tensor,
    squares: Squares | None,
    gated: bool,
    into: tuple[Residual, torch.Tensor, torch.Tensor] | None,
    early: bool,
) -> None:
    rows, (outputs, inputs) = x.shape[0], weight.shape
    height = max(16, triton.next_power_of_2(rows))
    tiles = -(-outputs // tile.outputs)
    size = tiles * tile.splits * tile.outputs * height if tile.splits > 1 else 1
    sums = torch.empty(size, dtype=torch.float32, device=x.device)
    residual, total, total_squares = into if into is not None else (Residual(out, out), out, sums)
    skinny_linear[(tiles, tile.splits)](
        x,
        weight,
        weight if bias is None else bias,
        out,
        sums,
        arrivals,
        sums if squares is None else squares.sums,
        residual.stream,
        residual.norm,
        total,
        total_squares,
        rows,
        x.stride(0),
        weight.stride(0),
        residual.stream.stride(0),
        0.0 if squares is None else squares.eps,
        outputs=outputs,
        inputs=inputs,
        height=height,
        tile_outputs=tile.outputs,
        tile_inputs=tile.inputs,
        splits=tile.splits,
        biased=bias is not None,
        square_tiles=0 if squares is None else squares.sums.shape[0],
        gated=gated,
        added=into is not None,
        early=early,
        num_warps=tile.warps,
        num_stages=tile.stages,
        launch_pdl=early,
    )
