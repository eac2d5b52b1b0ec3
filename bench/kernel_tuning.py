"""Search for the tiles of the skinny matrix product, printed as the table that ssd/kernels/tiles.py holds."""

import multiprocessing
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

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
_WAVES = (264, 528)
"""Programs that fill 132 multiprocessors twice and four times."""
_MOST_PROCESSES = 16
_TABLE = re.compile(r"^(TILES: [^=]*)= \(.*?\)$", re.MULTILINE | re.DOTALL)


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


def tune_quickly(shapes: Sequence[tuple[int, int]], device: torch.device) -> Iterator[Tuned]:
    """The best of a dozen likely tiles of each shape; all are compiled beforehand on all cores."""
    shapes = list(dict.fromkeys(shapes))
    work = [(shape, tile) for shape in shapes for tile in likely(*shape)]
    compile_all(work)
    for shape in shapes:
        trial = _Trial(shape, device)
        guess = guessed_tile(*shape)
        times = {tile: trial.time(tile) for tile in likely(*shape)}
        best = min(times, key=lambda tile: times[tile])
        yield Tuned(shape, best, times[best], times[guess])


def likely(outputs: int, inputs: int) -> list[LinearTile]:
    """The guess, and for each extent the splits that fill the GPU once or twice, with two programs to a multiprocessor
    in flight."""
    tiles = {guessed_tile(outputs, inputs): None}
    for rows, columns in product((32, 64, 128), (64, 128, 256)):
        bytes_in_flight = columns * (rows + max(TUNED_ROWS)) * 2
        stages = max(3, min(6, _SHARED_BYTES // 2 // bytes_in_flight))
        programs, steps = -(-outputs // rows), -(-inputs // columns)
        splits = [count for count in (1, 2, 3, 4, 5, 6, 8, 12, 16) if steps >= 3 * count]
        near = sorted(splits, key=lambda count: min(abs(programs * count - wanted) for wanted in _WAVES))
        for count in near[:1] if programs > _WAVES[-1] else near[:2]:
            tile = LinearTile(rows, columns, count, stages, 4)
            if fits(tile) and programs * count >= _FEWEST_PROGRAMS:
                tiles[tile] = None
    return list(tiles)


def compile_all(work: Sequence[tuple[tuple[int, int], LinearTile]]) -> None:
    """Fills the compiler's cache on disk: each process launches its part of the kernels once."""
    count = min(os.cpu_count() or 1, len(work), _MOST_PROCESSES)
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        pool.map(_launch, [work[first::count] for first in range(count)], chunksize=1)


def _launch(work: Sequence[tuple[tuple[int, int], LinearTile]]) -> None:
    device = torch.device("cuda")
    arrivals = torch.zeros(1 << 14, dtype=torch.int32, device=device)
    for (outputs, inputs), tile in work:
        weight = torch.zeros(outputs, inputs, dtype=torch.bfloat16, device=device)
        for rows in TUNED_ROWS:
            x = torch.zeros(rows, inputs, dtype=torch.bfloat16, device=device)
            try:
                linear(x, weight, None, arrivals, tile)
            except OutOfResources:
                break
        del weight


def write_table(found: Sequence[Tuned], source: Path) -> None:
    """Puts the tiles into the module that holds the table, in place of those that it has."""
    table = "\n".join(["= (", *[one.source() for one in found], ")"])
    text, count = _TABLE.subn(lambda match: match.group(1) + table, source.read_text(encoding="utf-8"))
    if count != 1:
        raise ValueError(f"{source} has no table of tiles")
    source.write_text(text, encoding="utf-8")


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
