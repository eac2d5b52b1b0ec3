"""Tiles of the skinny matrix product by weight shape: data that `python -m bench.kernels --tune` finds and prints."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LinearTile:
    """A program's tile of the weight: `outputs` rows, `inputs` columns at a time, the columns shared by `splits`."""

    outputs: int
    inputs: int
    splits: int
    stages: int
    warps: int


TILES: tuple[tuple[tuple[int, int], LinearTile], ...] = ()
"""((out, in), tile) of the shapes that were tuned, on one H200; the others get `guessed_tile`."""

# Programs that fill 132 multiprocessors twice, and the steps below which a split does not pay for its sum.
_PROGRAMS = 264
_LEAST_STEPS = 4
_MOST_SPLITS = 16


def tile_for(outputs: int, inputs: int) -> LinearTile:
    """The tile for a weight [outputs, inputs]. Rows of x do not enter, so that sums are taken in the same order for
    any number of them."""
    return dict(TILES).get((outputs, inputs)) or guessed_tile(outputs, inputs)


def guessed_tile(outputs: int, inputs: int) -> LinearTile:
    """Weight rows enough for the tensor cores' wide form where there are many, and splits to fill the GPU."""
    rows = 128 if outputs >= 16384 else 64 if outputs >= 2048 else 32
    columns = 64 if rows == 128 else 128
    tiles, steps = -(-outputs // rows), -(-inputs // columns)
    splits = 1
    while splits < _MOST_SPLITS and tiles * splits * 2 <= _PROGRAMS and steps // (splits * 2) >= _LEAST_STEPS:
        splits *= 2
    return LinearTile(rows, columns, splits, 5 if rows == 128 else 4, 4)
