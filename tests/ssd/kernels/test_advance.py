"""The kernels between two steps of a chain leave what the reference leaves, over several steps."""

import random

import pytest
import torch

from ssd.kernels.advance import TritonAdvance
from ssd.runtime.advancing import TorchAdvance

CHAIN, LAST = 5, 60


def numbers(chance: random.Random, *shape: int, low: int, high: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.tensor([chance.randint(low, high) for _ in range(count)]).view(shape)


def state(chance: random.Random, tokens: int) -> dict[str, torch.Tensor]:
    return {
        "ids": numbers(chance, tokens, low=0, high=99),
        # Some are at the last position already.
        "positions": numbers(chance, tokens, low=LAST - 12, high=LAST),
        "draw_positions": numbers(chance, tokens, low=0, high=1 << 40),
        "slots": numbers(chance, tokens, low=-1, high=4),
        "step": torch.tensor([0]),
    }


def compare(there: dict[str, torch.Tensor], results: torch.Tensor, step: str, *args: int) -> None:
    """Both from the same state, as often as there are steps between steps."""
    ours = {name: tensor.clone() for name, tensor in there.items()}
    begun = {name: tensor.clone() for name, tensor in there.items()}
    for _ in range(CHAIN - 1):
        getattr(TorchAdvance(), step)(there, results, *args)
        getattr(TritonAdvance(), step)(ours, results, *args)
        for name, tensor in there.items():
            assert torch.equal(ours[name], tensor), name
    assert int(there["step"]) == CHAIN - 1
    assert not torch.equal(begun["ids"], there["ids"])


@pytest.mark.parametrize(("tokens", "count", "block_size"), [(1, 1, 16), (3, 4, 5), (8, 1, 16), (40, 2, 1)])
def test_rows(device, tokens, count, block_size):
    chance = random.Random(tokens)
    there = state(chance, tokens) | {
        # Tables that end before the last position: what lies behind them is in their last block.
        "tables": numbers(chance, tokens, 50 // block_size, low=0, high=9),
        "context_lens": numbers(chance, tokens, low=0, high=1) * LAST,
    }
    results = numbers(chance, CHAIN, tokens, count, low=-1, high=199).to(device)
    compare({name: tensor.to(device) for name, tensor in there.items()}, results, "rows", block_size, LAST)


@pytest.mark.parametrize(("tokens", "count", "depth"), [(1, 1, 1), (24, 1, 6), (33, 2, 3)])
def test_branches(device, tokens, count, depth):
    chance = random.Random(tokens)
    held = numbers(chance, tokens, low=0, high=depth)
    there = state(chance, tokens) | {
        "suffix_slots": numbers(chance, tokens, depth, low=-1, high=500),
        "suffix_len": held.clamp(max=1),
        "slots_held": held,
    }
    results = numbers(chance, CHAIN, tokens, count, low=-1, high=199).to(device)
    compare({name: tensor.to(device) for name, tensor in there.items()}, results, "branches", LAST)
