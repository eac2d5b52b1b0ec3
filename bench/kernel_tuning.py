"""Search for the tiles of the skinny matrix product, printed as the table that ssd/kernels/tiles.py holds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch
from triton.runtime.errors import OutOfResources

from bench.kernel_parts import make_weights
from bench.kernel_timing import microseconds
from ssd.kernels.linear import linear
from ssd.kernels.tiles import LinearTile, guessed_tile

TUNED_ROWS = (8, 32)
"""The mean over these numbers of rows decides."""
_SHARED_BYTES = 227 << 10
_FEWEST_PROGRAMS, _MOST_PROGRAMS = 64, 2400
_MOST_IN_FLIGHT = 3


@dataclass(frozen=True)
class Tuned:
    """The best tile of a shape, and its microseconds and those of the guess, summed over TUNED_ROWS."""

    shape: tuple[int, int]
    tile: LinearTile
    best_us: float
    guess_us: float

    def source(self) -> str:
        """The line of the table."""
        tile = self.tile
        numbers = f"{tile.outputs}, {tile.inputs}, {tile.splits}, {tile.stages}, {tile.warps}"
        return f"    ({self.shape}, LinearTile({numbers})),"


def tune(shapes: Sequence[tuple[int, int]], device: torch.device) -> Iterator[Tuned]:
    """The best tile of each shape: first its extent and splits, then stages and warps of the best few."""
    for shape in dict.fromkeys(shapes):
        trial = _Trial(shape, device)
        guess = guessed_tile(*shape)
        times = {guess: trial.time(guess)}
        times.update((tile, trial.time(tile)) for tile in extents(*shape) if tile not in times)
        for tile in sorted(times, key=lambda tile: times[tile])[:_MOST_IN_FLIGHT]:
            for stages, warps in product((3, 4, 5, 6), (4, 8)):
                other = replace(tile, stages=stages, warps=warps)
                if other not in times and fits(other):
                    times[other] = trial.time(other)
        best = min(times, key=lambda tile: times[tile])
        yield Tuned(shape, best, times[best], times[guess])


def extents(outputs: int, inputs: int) -> list[LinearTile]:
    """Tiles worth a trial: enough programs, and steps for every split."""
    tiles = []
    for rows, columns, splits in product((16, 32, 64, 128), (64, 128, 256), (1, 2, 4, 8)):
        programs, steps = -(-outputs // rows) * splits, -(-inputs // columns)
        tile = LinearTile(rows, columns, splits, 4, 4)
        if _FEWEST_PROGRAMS <= programs <= _MOST_PROGRAMS and steps >= 2 * splits and fits(tile):
            tiles.append(tile)
    return tiles


def fits(tile: LinearTile) -> bool:
    """Whether the stages of a tile and 32 rows of x go into shared memory."""
    return tile.stages * tile.inputs * (tile.outputs + max(TUNED_ROWS)) * 2 <= _SHARED_BYTES


class _Trial:
    def __init__(self, shape: tuple[int, int], device: torch.device) -> None:
        outputs, inputs = shape
        self.weights = make_weights(outputs, inputs, device)
        self.inputs = [torch.randn(rows, inputs, dtype=torch.bfloat16, device=device) for rows in TUNED_ROWS]
        self.arrivals = torch.zeros(-(-outputs // 16), dtype=torch.int32, device=device)

    def time(self, tile: LinearTile) -> float:
        try:
            return sum(
                microseconds([partial(linear, x, weight, None, self.arrivals, tile) for weight in self.weights])
                for x in self.inputs
            )
        except OutOfResources:
            return float("inf")
