"""Tiles of a fixed height give what one call over all rows gives, and every call has the same shape."""

import pytest
import torch

from ssd.layers.rows import AllRows, RowTiles


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 11])
def test_tiles_have_one_height_and_lose_no_row(count):
    heights = []

    def function(a, b):
        heights.append((len(a), len(b)))
        return a.sum(-1, keepdim=True) * b

    a, b = torch.randn(count, 3), torch.randn(count, 2, 2).flatten(1)
    assert torch.equal(RowTiles(4).apply(function, a, b), AllRows().apply(function, a, b))
    assert set(heights[:-1]) == {(4, 4)}


def test_a_tile_needs_a_row():
    with pytest.raises(ValueError, match="at least 1"):
        RowTiles(0)
