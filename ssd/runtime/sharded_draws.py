"""Plain draws where each rank has the logits of a part of the vocabulary only.

A rank scores its own ids with the noise that these ids have in the whole vocabulary, and keeps the best few. All ranks
then merge the same few numbers by the same rule, so each of them knows the ids that one process with all logits would
have drawn, bit for bit. Two small exchanges a step: the maximum of each part, then scores and ids.
"""

import importlib

import torch

from ssd.layers.shard import VocabPart
from ssd.runtime.draws import UNDRAWABLE
from ssd.speculation.filters import strict_top
from ssd.speculation.philox import gumbel_of, uniform_words

_NO_ID = 1 << 62
"""Fills up a part with fewer ids than are ranked; behind every id among equal scores."""


def ranked_over_ranks(
    scores: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    temperatures: torch.Tensor,
    count: int,
    part: VocabPart,
) -> torch.Tensor:
    """ssd.runtime.draws.ranked_ids over all ranks' parts; every rank must ask for the same rows.

    scores [N, width >= part.count], of which the first part.count columns are read → int64 [N, count].
    """
    if scores.device.type != "cuda":
        return reference_over_ranks(scores, seeds, positions, temperatures, count, part)
    # Only now: Triton is not installed everywhere.
    kernels = importlib.import_module("ssd.kernels.draw")
    drawn = kernels.draw_ids(scores, seeds, positions, temperatures, count=count, part=part)
    return torch.where(drawn.status[:, None] == 0, drawn.ids, UNDRAWABLE)


def reference_over_ranks(
    scores: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    temperatures: torch.Tensor,
    count: int,
    part: VocabPart,
) -> torch.Tensor:
    """`ranked_over_ranks` in plain torch, on any device."""
    work = scores[:, : part.count].to(torch.float64 if scores.dtype == torch.float64 else torch.float32)
    own_peak = work.amax(dim=-1, keepdim=True) if part.count else work.new_full((len(work), 1), -torch.inf)
    peak = part.gather(own_peak).amax(dim=-1, keepdim=True)
    broken = ~peak.isfinite()
    work = work.masked_fill(broken, 0.0).to(torch.float64)
    greedy = (temperatures == 0.0)[:, None]
    scaled = (work - peak.to(torch.float64).masked_fill(broken, 0.0)).div_(
        torch.where(greedy, 1.0, temperatures[:, None])
    )
    noise = gumbel_of(uniform_words(seeds, positions, part.count, first=part.first))
    best, ids = _best_of_part(torch.where(greedy, work, scaled + noise), count, part)
    everyones = part.gather(torch.cat((best.view(torch.int64), ids), dim=-1)).view(len(ids), -1, 2, count)
    merged = _merged(everyones[:, :, 0].flatten(1).view(torch.float64), everyones[:, :, 1].flatten(1), count)
    return merged.masked_fill_(broken, UNDRAWABLE)


def _best_of_part(raced: torch.Tensor, count: int, part: VocabPart) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` best of raced [N, part.count]: scores and ids of the whole vocabulary, [N, count] each."""
    missing = max(0, count - part.count)
    if missing:
        raced = torch.cat((raced, raced.new_full((len(raced), missing), -torch.inf)), dim=-1)
    best, places = strict_top(raced, count)
    return best.contiguous(), torch.where(places < part.count, places + part.first, _NO_ID)


def _merged(scores: torch.Tensor, ids: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the `count` best of [N, M], the lower id first among equal scores."""
    ids, order = ids.sort(dim=-1)
    best = scores.gather(-1, order).sort(dim=-1, descending=True, stable=True).indices
    return ids.gather(-1, best)[:, :count]
