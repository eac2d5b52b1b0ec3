"""One table of logits, whole and in the parts that ranks would hold."""

import torch

from ssd.layers.shard import VocabPart
from tests.ssd.threads import on_threads

SEEDS = [0, 1, -1, -(1 << 63), 0x0123456789ABCDEF, 77]
POSITIONS = [0, 1, 5, 100_000, 131_071, 9]
TEMPERATURES = [0.0, 1.0, 0.7, 0.01, 50.0, 1e-30]
UNREADABLE = 1e30
"""What the columns past a rank's own ids hold here: nothing may read them."""


def columns(device):
    return (
        torch.tensor(SEEDS, device=device),
        torch.tensor(POSITIONS, device=device),
        torch.tensor(TEMPERATURES, dtype=torch.float64, device=device),
    )


def over_ranks(draw, logits, size, count, vocab=None):
    """draw(scores, seeds, positions, temperatures, count, part) on `size` ranks: what each of them gives."""
    share = -(-logits.shape[1] // size)
    share += -share % 8
    drawn = columns(logits.device)

    def run(rank, collective):
        first = min(logits.shape[1], rank * share)
        own = logits[:, first : first + share]
        filled = torch.cat([own, own.new_full((len(own), share - own.shape[1]), UNREADABLE)], dim=1)
        part = VocabPart(first, own.shape[1], collective.all_gather).below(vocab or logits.shape[1])
        return draw(filled, *drawn, count, part)

    return on_threads(size, run)


def random_logits(vocab, dtype=torch.float32, spread=3.0):
    generator = torch.Generator().manual_seed(vocab)
    return (torch.randn(len(SEEDS), vocab, generator=generator, dtype=torch.float64) * spread).to(dtype)
