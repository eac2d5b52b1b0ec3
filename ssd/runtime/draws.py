"""Draws that a device can make by itself: greedy or at a plain temperature, nothing else.

Ids are those of ssd.speculation.sampling bit for bit; rows with filters, penalties, bias, forbidden ids or logprobs go
there.
"""

import importlib
from dataclasses import dataclass

import torch

from ssd.speculation.filters import strict_top
from ssd.speculation.params import SamplingParams
from ssd.speculation.penalties import adjusts
from ssd.speculation.philox import seed_pattern
from ssd.speculation.race import full_race

UNDRAWABLE = -1
"""Stands for the ids of a row of logits that holds NaN, +inf or no possible token."""
MOST_RANKED = 32
"""Candidates of one row that a device ranks by itself."""


@dataclass(frozen=True, slots=True)
class PlainDraw:
    """`seed`: the signed integer with the bits of the request's; `position`: absolute index of the drawn token;
    `temperature`: 0 = greedy."""

    seed: int
    position: int
    temperature: float


def drawn_plainly(params: SamplingParams) -> bool:
    """Whether the parameters ask for nothing but a temperature. Ids that min_tokens forbids are not seen here."""
    return not (params.filtered or params.logprobs >= 0 or adjusts(params, ()))


def plain_draw(params: SamplingParams, position: int) -> PlainDraw:
    """The draw at `position` of parameters that are `drawn_plainly`."""
    return PlainDraw(seed_pattern(params.seed), position, params.temperature)


def ranked_ids(
    logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, temperatures: torch.Tensor, count: int
) -> torch.Tensor:
    """The `count` best ids of each row of logits [N, V] in the order of the draw, int64 [N, count]; UNDRAWABLE all
    along a row that cannot be drawn from.

    seeds, positions int64 [N], temperatures float64 [N]; count up to MOST_RANKED. On a GPU nothing waits for the
    device.
    """
    if logits.device.type != "cuda":
        return reference_ids(logits, seeds, positions, temperatures, count)
    # Only now: Triton is not installed everywhere.
    kernels = importlib.import_module("ssd.kernels.draw")
    drawn = kernels.draw_ids(logits, seeds, positions, temperatures, count=count)
    return torch.where(drawn.status[:, None] == 0, drawn.ids, UNDRAWABLE)


def reference_ids(
    logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, temperatures: torch.Tensor, count: int
) -> torch.Tensor:
    """`ranked_ids` in plain torch, on any device."""
    work = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)
    peak = work.amax(dim=-1, keepdim=True)
    broken = ~peak.isfinite()
    work = work.masked_fill(broken, 0.0)
    greedy = (temperatures == 0.0)[:, None]
    scaled = (work.to(torch.float64) - peak.to(torch.float64).masked_fill(broken, 0.0)).div_(
        torch.where(greedy, 1.0, temperatures[:, None])
    )
    ids = torch.where(greedy, strict_top(work, count)[1], full_race(scaled, seeds, positions, count))
    return ids.masked_fill_(broken, UNDRAWABLE)
