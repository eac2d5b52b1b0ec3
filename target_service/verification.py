"""What a step's logits decide: for every row, how much of its proposal is accepted and which token follows.

Coupled rows draw for themselves and compare; rows under rejection weigh the proposal by the laws that came with it.
Both kinds share a step, and no row's verdict depends on its company.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ssd.runtime.runner import Stepped
from ssd.speculation.law import known_laws
from ssd.speculation.rejection import Block, reject_blocks
from ssd.speculation.sampling import Draw, draw
from ssd.speculation.verify import Verdict, verify
from target_service.scheduler import StepRow


@dataclass(frozen=True, slots=True)
class Undrawable:
    """The row's logits and parameters leave no token to draw."""

    reason: str


Ruling = Verdict | Undrawable | None
"""None for a row that is not complete: nothing is drawn there."""


_NOTHING = "the logits hold NaN, +inf, or no possible token"


def rulings(rows: Sequence[StepRow], logits: torch.Tensor) -> list[Ruling]:
    """One for each row, from logits [sum of row.draws, vocab]."""
    results: list[Ruling] = [None] * len(rows)
    ends = list(itertools.accumulate(row.draws for row in rows))
    for judge, rejection in ((_coupled, False), (_rejection, True)):
        members = [i for i, row in enumerate(rows) if row.complete and row.sequence.terms.rejection is rejection]
        if not members:
            continue
        places = [place for i in members for place in range(ends[i] - rows[i].draws, ends[i])]
        part = logits if len(places) == len(logits) else logits[places]
        for i, ruling in zip(members, _judged(judge, [rows[i] for i in members], part), strict=True):
            results[i] = ruling
    return results


def rulings_of(rows: Sequence[StepRow], stepped: Stepped) -> list[Ruling]:
    """The same where the device has made the plain draws already."""
    results: list[Ruling] = [None] * len(rows)
    ends = list(itertools.accumulate(row.draws for row in rows))
    others: list[int] = []
    places: list[int] = []
    for i, row in enumerate(rows):
        if row.plain:
            ids = [best[0] for best in stepped.ids[ends[i] - row.draws : ends[i]]]
            results[i] = Undrawable(_NOTHING) if min(ids) < 0 else verify(row.proposal.ids, [Draw(one) for one in ids])
        elif row.complete:
            others.append(i)
            places += range(ends[i] - row.draws, ends[i])
    if others:
        for i, ruling in zip(others, rulings([rows[i] for i in others], stepped.logits(places)), strict=True):
            results[i] = ruling
    return results


Judge = Callable[[Sequence[StepRow], torch.Tensor], list[Verdict]]


def _judged(judge: Judge, rows: Sequence[StepRow], logits: torch.Tensor) -> list[Verdict | Undrawable]:
    try:
        return list(judge(rows, logits))
    except ValueError as error:
        if len(rows) == 1:
            return [Undrawable(str(error))]
    # One row without a token to draw must not take the others with it.
    parts = logits.split([row.draws for row in rows])
    return [_judged(judge, [row], part)[0] for row, part in zip(rows, parts, strict=True)]


def _coupled(rows: Sequence[StepRow], logits: torch.Tensor) -> list[Verdict]:
    drawn = iter(draw(logits, [one for row in rows for one in row.draw_rows()]))
    return [verify(row.proposal.ids, list(itertools.islice(drawn, row.draws))) for row in rows]


def _rejection(rows: Sequence[StepRow], logits: torch.Tensor) -> list[Verdict]:
    blocks = [Block(one.ids, known_laws(one.laws) or (None,) * len(one.ids)) for one in (row.proposal for row in rows)]
    return reject_blocks(logits, [one for row in rows for one in row.draw_rows()], blocks)
