"""Token embedding and output head, split over ranks by vocabulary."""

import torch
from torch.nn import functional

from ssd.layers.build import Build
from ssd.layers.weights import Layer, Source, expect_shape


class VocabEmbedding(Layer):
    """One matrix [vocab, hidden] that reads ids in and, where it is tied or used as the head, gives logits out.

    Each rank holds ceil(vocab / ranks) rows; the rows past the vocabulary on the last ranks are zero and never leave
    here.
    """

    def __init__(self, vocab: int, hidden: int, build: Build) -> None:
        super().__init__()
        self.ops = build.ops
        self.shard = build.shard
        self.shape = (vocab, hidden)
        share = -(-vocab // build.shard.size)
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

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [M, hidden] → [M, vocab], on every rank."""
        return self.shard.all_gather(self.ops.linear(hidden, self.weight, None))[:, : self.shape[0]]
