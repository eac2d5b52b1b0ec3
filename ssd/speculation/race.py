"""The race of tokens under Gumbel noise: the best of logit + noise, without noise for tokens that cannot win."""

from __future__ import annotations

import torch
from torch import Tensor

from ssd.speculation.filters import strict_top
from ssd.speculation.philox import gumbel, gumbel_at, uniform_words

# Up to here the plain way is as fast as the pruned one.
_PLAIN_VOCAB = 2048
_LEADERS = 64
# Largest Gumbel number a 32-bit word can give is 22.87 (u = 1 - 2^-33).
_NOISE_LIMIT = 22.9
# A float32 exponential of a difference below 25 is good to 1e-5; the margin keeps every true candidate.
_MARGIN = 1.001


def full_race(scaled: Tensor, seeds: Tensor, positions: Tensor, count: int) -> Tensor:
    """Ids of the `count` largest scaled + noise of each row, best first: int64 [R, count].

    scaled float64 [R, V] with finite maximum 0; seeds, positions int64 [R]. Equal scores rank by id. The result is
    that of `plain_race`; only the work differs.
    """
    vocab = scaled.shape[-1]
    if vocab <= _PLAIN_VOCAB or count * 4 >= vocab:
        return plain_race(scaled, seeds, positions, count)
    leaders, leader_ids = scaled.topk(max(_LEADERS, count), dim=-1)
    scores = leaders + gumbel_at(seeds, positions, leader_ids)
    bound = scores.topk(count, dim=-1).values[:, -1:]
    if not bool(bound.isfinite().all()):
        return plain_race(scaled, seeds, positions, count)
    return _best_of(_candidates(scaled, bound, seeds, positions), scaled, seeds, positions, count)


def plain_race(scaled: Tensor, seeds: Tensor, positions: Tensor, count: int) -> Tensor:
    """The race by definition, with noise for every token."""
    return strict_top(scaled + gumbel(seeds, positions, scaled.shape[-1]), count)[1]


def race_among(ids: Tensor, kept: Tensor, scaled: Tensor, seeds: Tensor, positions: Tensor, count: int) -> Tensor:
    """The race among ids [R, M] where kept [R, M]: int64 [R, min(count, M)], -1 where a row has no further survivor."""
    ids, order = ids.sort(dim=-1)
    values = scaled.gather(-1, ids)
    if ids.shape[-1] * 4 > scaled.shape[-1]:
        noise = gumbel(seeds, positions, scaled.shape[-1]).gather(-1, ids)
    else:
        noise = gumbel_at(seeds, positions, ids)
    scores = (values + noise).masked_fill(~kept.gather(-1, order), -torch.inf)
    best, ranks = strict_top(scores, count)
    return ids.gather(-1, ranks).masked_fill(best == -torch.inf, -1)


def _candidates(scaled: Tensor, bound: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """A superset of the tokens whose score reaches `bound` [R, 1], as bool [R, V].

    Token v reaches it iff -log u_v <= exp(scaled_v - bound). As -log u >= 1 - u, the test 1 - u_v <= exp(scaled_v -
    bound) misses none of them, takes no logarithm, and lets through about as many tokens as the right side adds up
    to.
    """
    able = scaled >= bound - _NOISE_LIMIT
    if int(able.sum()) * 32 <= able.numel():
        return able
    words = uniform_words(seeds, positions, scaled.shape[-1])
    complement = (0xFFFFFFFF - words).to(torch.float32).add_(0.5).mul_(2.0**-32)
    return complement <= (scaled - bound).to(torch.float32).exp_().mul_(_MARGIN)


def _best_of(candidates: Tensor, scaled: Tensor, seeds: Tensor, positions: Tensor, count: int) -> Tensor:
    rows, ids = candidates.nonzero(as_tuple=True)
    noise = gumbel_at(seeds[rows], positions[rows], ids[:, None])[:, 0]
    per_row = candidates.sum(dim=-1)
    place = torch.arange(len(rows), device=rows.device) - (per_row.cumsum(0) - per_row)[rows]
    shape = (len(per_row), int(per_row.amax()))
    scores = scaled.new_full(shape, -torch.inf)
    scores[rows, place] = scaled[rows, ids] + noise
    padded_ids = ids.new_full(shape, -1)
    padded_ids[rows, place] = ids
    # Ids ascend within a row, so that the order by place among equal scores is the order by id.
    return padded_ids.gather(-1, strict_top(scores, count)[1])
