"""Token embedding and output head, split over ranks by vocabulary."""

import torch
from torch.nn import functional

from ssd.layers.build import Build
from ssd.layers.shard import VocabPart
from ssd.layers.weights import Layer, Source, expect_shape

_ROUNDED_TO = 8
"""Rows of a rank, so that products and noise, which comes four tokens at a time, begin at whole units."""


class VocabEmbedding(Layer):
    """One matrix [vocab, hidden] that reads ids in and, where it is tied or used as the head, gives logits out.

    Each rank holds ceil(vocab / ranks) rows, rounded up; the rows past the vocabulary on the last ranks are zero, and
    their logits are never read. Only whole logits are without them.
    """

    def __init__(self, vocab: int, hidden: int, build: Build) -> None:
        super().__init__()
        self.ops = build.ops
        self.shard = build.shard
        self.shape = (vocab, hidden)
        share = -(-vocab // build.shard.size)
        if build.shard.size > 1:
            share += -share % _ROUNDED_TO
        self.first = min(vocab, build.shard.rank * share)
        self.last = min(vocab, self.first + share)
        self.weight = build.empty(share, hidden)

    def load(self, parameter: str, source: Source, part: str = "") -> None:
        expect_shape(source, self.shape)
        self.weight[self.last - self.first :].zero_()
        if self.last > self.first:
            self.weight[: self.last - self.first].copy_(source[self.first : self.last])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [T] int64 in [0, vocab) → [T, hidden]."""
        if self.shard.size == 1:
            return functional.embedding(ids, self.weight)
        foreign = (ids < self.first) | (ids >= self.last)
        rows = functional.embedding((ids - self.first).masked_fill(foreign, 0), self.weight)
        return self.shard.all_reduce(rows.masked_fill(foreign[:, None], 0))

    @property
    def part(self) -> VocabPart:
        """The ids of this rank."""
        return VocabPart(self.first, self.last - self.first, self.shard.all_gather)

    def own_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [M, hidden] → [M, rows of this rank]."""
        return self.ops.linear(hidden, self.weight, None)

    def whole(self, own: torch.Tensor) -> torch.Tensor:
        """Every rank's own_logits → [M, vocab], on every rank."""
        return self.shard.all_gather(own)[:, : self.shape[0]]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [M, hidden] → [M, vocab], on every rank."""
        return self.whole(self.own_logits(hidden))
