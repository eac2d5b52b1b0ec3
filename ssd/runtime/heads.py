"""What a step keeps of its logits, and how it draws from them: whole rows, or one rank's part of the vocabulary.

Rows that a device can draw by itself never need whole logits: each rank ranks its own ids, and only the best few of
every rank are brought together. Others ask for `whole`.
"""

from typing import Protocol

import torch

from ssd.models.decoder import CausalLM
from ssd.models.loader import LoadedModel
from ssd.runtime.draws import ranked_ids
from ssd.runtime.sharded_draws import ranked_over_ranks


class Head(Protocol):
    """Scores are what one process computes of the logits: [M, width] in the model's dtype."""

    width: int

    def scores(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [M, hidden] → [M, width]."""
        ...

    def ranked(
        self,
        scores: torch.Tensor,
        seeds: torch.Tensor,
        positions: torch.Tensor,
        temperatures: torch.Tensor,
        count: int,
    ) -> torch.Tensor:
        """The best ids of each row, int64 [M, count]; see ssd.runtime.draws.ranked_ids."""
        ...

    def whole(self, scores: torch.Tensor) -> torch.Tensor:
        """[M, width] → logits [M, V]. Every rank must ask for the same rows."""
        ...


class WholeHead:
    """All of the vocabulary in this process. Ids from `vocab` on are never drawn."""

    def __init__(self, model: CausalLM, vocab: int) -> None:
        self.width = model.head.shape[0]
        self._model = model
        self._vocab = vocab

    def scores(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._model.logits(hidden)

    def ranked(
        self,
        scores: torch.Tensor,
        seeds: torch.Tensor,
        positions: torch.Tensor,
        temperatures: torch.Tensor,
        count: int,
    ) -> torch.Tensor:
        return ranked_ids(scores[:, : self._vocab], seeds, positions, temperatures, count)

    def whole(self, scores: torch.Tensor) -> torch.Tensor:
        return scores


class ShardedHead:
    """The part of the vocabulary that this rank holds."""

    def __init__(self, model: CausalLM, vocab: int) -> None:
        self.width = model.head.weight.shape[0]
        self._model = model
        self._part = model.head.part.below(vocab)

    def scores(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._model.own_logits(hidden)

    def ranked(
        self,
        scores: torch.Tensor,
        seeds: torch.Tensor,
        positions: torch.Tensor,
        temperatures: torch.Tensor,
        count: int,
    ) -> torch.Tensor:
        return ranked_over_ranks(scores, seeds, positions, temperatures, count, self._part)

    def whole(self, scores: torch.Tensor) -> torch.Tensor:
        return self._model.head.whole(scores)


def head_of(loaded: LoadedModel, vocab: int = 0) -> Head:
    """The head of a loaded model; `vocab`: ids that may be drawn, 0 = all that there are logits for."""
    drawable = min(vocab or loaded.config.vocab_size, loaded.config.vocab_size)
    return WholeHead(loaded.model, drawable) if loaded.shard.size == 1 else ShardedHead(loaded.model, drawable)
