"""How row-wise computations are laid out: all rows at once, or tiles of one fixed height.

A kernel may round differently for another number of rows (bf16 products do, and the vector tail of an elementwise
kernel can). Where every call has the same shape, a row's result cannot depend on the rows beside it, so plain decoding
and verification of many tokens agree bit for bit. That costs padding at few rows and several calls at many.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

Result = TypeVar("Result", torch.Tensor, tuple[torch.Tensor, torch.Tensor])
"""One tensor or two, each with a row for each row of the inputs."""


class Rows(Protocol):
    """Applies a function whose output row i depends on input rows i only."""

    @property
    def tile(self) -> int | None:
        """Rows in every call; None where it varies."""
        ...

    def apply(self, function: Callable[..., Result], *inputs: torch.Tensor) -> Result:
        """function(*inputs); every input and every output have the same dimension 0."""
        ...


class AllRows:
    """One call over all rows."""

    tile: int | None = None

    def apply(self, function: Callable[..., Result], *inputs: torch.Tensor) -> Result:
        return function(*inputs)


class RowTiles:
    """Calls of exactly `tile` rows; the last tile is filled up with zeros that are dropped afterwards."""

    def __init__(self, tile: int) -> None:
        if tile < 1:
            raise ValueError(f"tile must be at least 1, got {tile}")
        self.tile: int | None = tile
        self._height = tile

    def apply(self, function: Callable[..., Result], *inputs: torch.Tensor) -> Result:
        count = inputs[0].shape[0]
        padding = -count % self._height
        if padding:
            inputs = tuple(torch.cat([x, x.new_zeros(padding, *x.shape[1:])]) for x in inputs)
        tiles = zip(*(x.split(self._height) for x in inputs), strict=True)
        return _joined([function(*tile) for tile in tiles], count)


def _joined(results: list[Result], count: int) -> Result:
    """The first `count` rows of the results behind one another."""
    first = results[0]
    if isinstance(first, torch.Tensor):
        return (first if len(results) == 1 else torch.cat(results))[:count]
    one, two = (list(parts) for parts in zip(*results, strict=True))
    return _joined(one, count), _joined(two, count)
