"""top-k, top-p and min-p, row by row independent of what else is in the batch.

Order inside a row is total everywhere: larger value first, lower id first among equals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ssd.speculation.params import SamplingParams

# Masses are integers in units of 2^-40 of the likeliest token: integer sums do not depend on the order of addition,
# so that neither batch company nor thread count can move the border of top-p. Safe from overflow up to 2^22 tokens.
_MASS_UNIT = 2.0**40

_FIRST_WIDTH = 64
_WIDTH_GROWTH = 8


def strict_top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row of [R, V], in order: values and ids, both [R, min(count, V)]."""
    vocab = values.shape[-1]
    count = min(count, vocab)
    if count == 1:
        ids = values.argmax(dim=-1, keepdim=True)
        return values.gather(-1, ids), ids
    if count * 4 >= vocab:
        return _sorted_rows(values, count)
    # topk leaves open which of several equal values it takes at the border, so take all of them and sort.
    border = values.topk(count, dim=-1).values[:, -1:]
    width = int((values >= border).sum(dim=-1).amax().clamp(min=count))
    if width * 4 >= vocab:
        return _sorted_rows(values, count)
    ids = values.topk(width, dim=-1).indices.sort(dim=-1).values
    top, order = values.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    return top[:, :count], ids.gather(-1, order)[:, :count]


def survivors(scaled: Tensor, params: Sequence[SamplingParams]) -> tuple[Tensor, Tensor]:
    """Ids that the filters leave, most likely first: ids int64 [R, M] and kept bool [R, M], a prefix of each row.

    scaled: float64 [R, V], logits after temperature with each row's maximum at 0. Filters apply in the order top_k,
    top_p (of the mass that top_k left), min_p. M is the largest number kept by any row.
    """
    vocab = scaled.shape[-1]
    rules = _Rules(scaled, params)
    small = [p.top_k for p in params if p.top_k <= 1024]
    width = min(vocab, max(_FIRST_WIDTH, *small, 0))
    while True:
        top, ids = strict_top(scaled, width)
        kept, settled = rules.apply(top, ids)
        if width == vocab or bool(settled.all()):
            most = max(1, int(kept.sum(dim=-1).amax()))
            return ids[:, :most], kept[:, :most]
        width = min(vocab, width * _WIDTH_GROWTH)


class _Rules:
    """The filters of R rows as tensors, applied to the leading `width` tokens of each."""

    def __init__(self, scaled: Tensor, params: Sequence[SamplingParams]) -> None:
        device, vocab = scaled.device, scaled.shape[-1]
        floors = [math.log(p.min_p) if p.min_p > 0.0 else -math.inf for p in params]
        limits = [p.top_k if 0 < p.top_k < vocab else vocab for p in params]
        self.limit = torch.tensor(limits, dtype=torch.int64, device=device)[:, None]
        self.floor = torch.tensor(floors, dtype=torch.float64, device=device)[:, None]
        self.share = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device)[:, None]
        self.limited = self.limit < vocab
        self.by_mass = self.share < 1.0
        self.mass = (scaled.exp() * _MASS_UNIT).round_().to(torch.int64) if any(p.top_p < 1.0 for p in params) else None

    def apply(self, top: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Kept [R, width], and settled [R]: whether more width could not change what is kept."""
        width = top.shape[-1]
        kept = (torch.arange(width, device=top.device)[None, :] < self.limit) & (top >= self.floor)
        if self.mass is not None:
            kept &= self._within_share(self.mass, ids)
        knows_total = ~(self.limited & self.by_mass)
        settled = (self.limit <= width) | (knows_total & ~kept[:, -1:])
        return kept, settled[:, 0]

    def _within_share(self, mass: Tensor, ids: Tensor) -> Tensor:
        width = ids.shape[-1]
        counted = torch.arange(width, device=ids.device)[None, :] < self.limit
        own = mass.gather(-1, ids) * counted
        total = torch.where(self.limited, own.sum(dim=-1, keepdim=True), mass.sum(dim=-1, keepdim=True))
        wanted = (self.share * total.to(torch.float64)).ceil().to(torch.int64)
        before = own.cumsum(dim=-1) - own
        return (before < wanted) | ~self.by_mass


def _sorted_rows(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    top, ids = values.sort(dim=-1, descending=True, stable=True)
    return top[:, :count], ids[:, :count]
