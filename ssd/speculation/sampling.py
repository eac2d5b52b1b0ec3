"""Coupled drawing: token = argmax(filtered logit + Gumbel noise of (seed, position)).

A draw is a pure function of (row of logits, parameters, seed, position, text before it). What else is in the batch, who
computes it and how often never matters; that is what makes plain, speculative and replayed decoding emit the same ids.

Order: bias, penalties, forbidden ids, temperature, top_k, top_p, min_p, noise, argmax. Temperature 0 takes the argmax
after the forbidden ids. Equal scores go to the lower id. Adjustments are made in float64 for float64 logits and in
float32 for all others; everything from temperature on is float64.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd.speculation.filters import strict_top, survivors
from ssd.speculation.finish import StopRules
from ssd.speculation.params import Draw, SamplingParams
from ssd.speculation.penalties import TokenHistory, adjust, adjusts
from ssd.speculation.philox import seed_pattern
from ssd.speculation.race import full_race, race_among

__all__ = ["Draw", "DrawRow", "SamplingParams", "TokenHistory", "block_rows", "draw", "row_after", "top_candidates"]

# Rows are handled in groups of at most this many logits, which bounds the float64 copies.
_CPU_GROUP = 1 << 22
_DEVICE_GROUP = 1 << 25


@dataclass(frozen=True, slots=True)
class DrawRow:
    """One row of logits to draw from.

    position    absolute index of the drawn token
    history     committed text, shared by the rows of a sequence; read only when a penalty is set
    ahead       proposal or branch tokens between the committed text and `position`
    forbidden   ids that must not be drawn here (stop ids before min_tokens)
    """

    params: SamplingParams
    position: int
    history: TokenHistory
    ahead: tuple[int, ...] = ()
    forbidden: Collection[int] = ()


def row_after(
    params: SamplingParams, history: TokenHistory, ahead: Sequence[int] = (), rules: StopRules | None = None
) -> DrawRow:
    """The row that draws the token after the committed text and `ahead`."""
    position = len(history) + len(ahead)
    forbidden = rules.forbidden_at(position - history.prompt_len) if rules is not None else frozenset()
    return DrawRow(params, position, history, tuple(ahead), forbidden)


def block_rows(
    params: SamplingParams, history: TokenHistory, proposal: Sequence[int], rules: StopRules | None = None
) -> list[DrawRow]:
    """The K + 1 rows that verify a proposal of K tokens: row j draws y_j and sees s_1..s_j as text before it."""
    return [row_after(params, history, proposal[:j], rules) for j in range(len(proposal) + 1)]


def draw(logits: Tensor, rows: Sequence[DrawRow]) -> list[Draw]:
    """Draw one token per row of logits [N, V] (any float dtype; not changed).

    Raises ValueError when the counts differ or a row holds NaN, +inf or nothing but -inf.
    """
    ids = _ranked(logits, rows, 1)[:, 0]
    chosen = ids.tolist()
    draws = [Draw(token) for token in chosen]
    asked = [i for i, row in enumerate(rows) if row.params.logprobs >= 0]
    if asked:
        drawn = reports(logits[asked], ids[asked], [rows[i].params.logprobs for i in asked])
        for i, report in zip(asked, drawn, strict=True):
            draws[i] = report
    return draws


def top_candidates(logits: Tensor, rows: Sequence[DrawRow], count: int) -> Tensor:
    """The `count` best ids of each row in the order of the draw: int64 [N, count], the first being what `draw` returns.

    When the filters leave fewer than `count` tokens, the others follow in the order of the unfiltered draw: the
    filters acted on this model's law, and another model's may have kept them. Raises ValueError like `draw`, and when
    count is not in 1..V.
    """
    if not 1 <= count <= logits.shape[-1]:
        raise ValueError(f"count must be between 1 and the vocabulary of {logits.shape[-1]}, got {count}")
    return _ranked(logits, rows, count)


def _ranked(logits: Tensor, rows: Sequence[DrawRow], count: int) -> Tensor:
    if logits.dim() != 2 or logits.shape[0] != len(rows):
        raise ValueError(f"{len(rows)} rows to draw need as many rows of logits, got shape {tuple(logits.shape)}")
    ids = torch.empty((len(rows), count), dtype=torch.int64, device=logits.device)
    limit = _CPU_GROUP if logits.device.type == "cpu" else _DEVICE_GROUP
    size = max(1, limit // max(1, logits.shape[1]))
    for start in range(0, len(rows), size):
        stop = min(len(rows), start + size)
        ids[start:stop] = _ranked_group(logits[start:stop], rows[start:stop], start, count)
    return ids


def _ranked_group(logits: Tensor, rows: Sequence[DrawRow], first_row: int, count: int) -> Tensor:
    adjusted = adjusted_logits(logits, rows)
    peak = adjusted.amax(dim=-1)
    broken = (~peak.isfinite()).nonzero()
    if len(broken):
        raise ValueError(f"row {first_row + int(broken[0, 0])} of the logits holds NaN, +inf, or no possible token")
    kinds: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        kinds.setdefault("greedy" if row.params.greedy else "filtered" if row.params.filtered else "full", []).append(i)
    ids = torch.empty((len(rows), count), dtype=torch.int64, device=logits.device)
    for kind, members in kinds.items():
        part = adjusted if len(members) == len(rows) else adjusted[members]
        if kind == "greedy":
            ids[members] = strict_top(part, count)[1]
        else:
            ids[members] = _sampled(part, peak[members], [rows[i] for i in members], count, filtered=kind == "filtered")
    return ids


def adjusted_logits(logits: Tensor, rows: Sequence[DrawRow]) -> Tensor:
    work = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)
    changing = [i for i, row in enumerate(rows) if adjusts(row.params, row.forbidden)]
    if changing and work is logits:
        work = logits.clone()
    for i in changing:
        row = rows[i]
        adjust(work[i], row.params, row.history, row.ahead, row.forbidden)
    return work


def _sampled(adjusted: Tensor, peak: Tensor, rows: Sequence[DrawRow], count: int, *, filtered: bool) -> Tensor:
    device = adjusted.device
    temperature = torch.tensor([row.params.temperature for row in rows], dtype=torch.float64, device=device)
    # With the maximum at 0 no temperature, however small, can overflow to +inf.
    scaled = (adjusted.to(torch.float64) - peak.to(torch.float64)[:, None]).div_(temperature[:, None])
    seeds = torch.tensor([seed_pattern(row.params.seed) for row in rows], dtype=torch.int64, device=device)
    positions = torch.tensor([row.position for row in rows], dtype=torch.int64, device=device)
    if not filtered:
        return full_race(scaled, seeds, positions, count)
    kept_ids, kept = survivors(scaled, [row.params for row in rows])
    best = race_among(kept_ids, kept, scaled, seeds, positions, count)
    if best.shape[-1] == count and not bool((best < 0).any()):
        return best
    return _filled(best, full_race(scaled, seeds, positions, min(2 * count, scaled.shape[-1])), count)


def _filled(best: Tensor, others: Tensor, count: int) -> Tensor:
    """The ids >= 0 of best [R, <= count], then those of others [R, >= count] that are not among them: [R, count]."""
    rows = [
        list(dict.fromkeys([token for token in first if token >= 0] + rest))[:count]
        for first, rest in zip(best.tolist(), others.tolist(), strict=True)
    ]
    return torch.tensor(rows, dtype=torch.int64, device=best.device)


def reports(logits: Tensor, ids: Tensor, counts: Sequence[int]) -> list[Draw]:
    """Draws with logprobs for chosen ids [R] under raw logits [R, V], with the top counts[r] of each row."""
    raw = logits.to(torch.float64)
    # A GPU splits a sum by shape and alignment of the whole batch; a row of its own sums the same in any company.
    norm = torch.stack([row.clone().logsumexp(dim=-1) for row in raw])[:, None]
    value = raw.gather(-1, ids[:, None])
    earlier = torch.arange(raw.shape[-1], device=raw.device)[None, :] < ids[:, None]
    ranks = ((raw > value) | ((raw == value) & earlier)).sum(dim=-1) + 1
    top, top_ids = strict_top(raw, max(1, *counts))
    columns = zip(
        ids.tolist(),
        (value - norm)[:, 0].tolist(),
        ranks.tolist(),
        top_ids.tolist(),
        (top - norm).tolist(),
        counts,
        strict=True,
    )
    return [
        Draw(token, logprob, rank, tuple(zip(best_ids[:n], best[:n], strict=True)))
        for token, logprob, rank, best_ids, best, n in columns
    ]
