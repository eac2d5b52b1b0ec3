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


TALL_TILE = LinearTile(128, 64, 1, 4, 8)
"""For 128 rows of x, with the splits that fewer rows have."""

TILES: tuple[tuple[tuple[int, int], LinearTile], ...] = (
    ((10240, 5120), LinearTile(64, 128, 1, 4, 4)),
    ((5120, 8192), LinearTile(64, 128, 3, 4, 4)),
    ((51200, 5120), LinearTile(64, 128, 1, 4, 4)),
    ((5120, 25600), LinearTile(64, 128, 3, 4, 4)),
    ((151936, 5120), LinearTile(128, 128, 1, 3, 4)),
    ((6144, 4096), LinearTile(64, 128, 2, 4, 4)),
    ((4096, 4096), LinearTile(64, 64, 4, 6, 4)),
    ((28672, 4096), LinearTile(64, 128, 1, 4, 4)),
    ((4096, 14336), LinearTile(64, 128, 4, 4, 4)),
    ((128256, 4096), LinearTile(128, 128, 1, 3, 4)),
    ((3072, 2048), LinearTile(64, 256, 2, 3, 4)),
    ((2048, 2048), LinearTile(64, 128, 4, 4, 4)),
    ((16384, 2048), LinearTile(64, 128, 1, 4, 4)),
    ((2048, 8192), LinearTile(32, 256, 4, 3, 4)),
    ((128256, 2048), LinearTile(128, 64, 1, 5, 4)),
    ((4096, 1024), LinearTile(32, 128, 1, 6, 4)),
    ((1024, 2048), LinearTile(32, 128, 4, 4, 4)),
    ((6144, 1024), LinearTile(64, 128, 1, 4, 4)),
    ((1024, 3072), LinearTile(64, 128, 6, 4, 4)),
    ((151936, 1024), LinearTile(128, 64, 1, 5, 4)),
)
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
