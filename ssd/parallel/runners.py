"""A runner whose calls several ranks make together: rank 0 tells the others, and each runs its part of the model."""

import functools
from collections.abc import Callable, Sequence
from typing import NoReturn

import torch

from ssd.parallel.line import Line
from ssd.parallel.wire import Call, Kind
from ssd.runtime.runner import BranchItem, Draws, ModelRunner, PlainDraw, RunRow, Stepped


class LeadingRunner:
    """See ssd.runtime.runner.Runner. What could fail is checked before the others hear of it."""

    def __init__(self, own: ModelRunner, line: Line) -> None:
        self._own = own
        self._line = line

    @property
    def draws(self) -> bool:
        return self._own.draws

    def run(self, rows: Sequence[RunRow]) -> torch.Tensor:
        self._own.check_rows(rows)
        with self._line.calling(Call(Kind.RUN, rows=rows)):
            return _computed(self._own.run(rows))

    def run_branches(self, items: Sequence[BranchItem]) -> torch.Tensor:
        self._own.check_branches(items)
        with self._line.calling(Call(Kind.RUN_BRANCHES, items=items)):
            return _computed(self._own.run_branches(items))

    def step(self, rows: Sequence[RunRow], draws: Draws, count: int = 1) -> Stepped:
        self._own.check_rows(rows)
        with self._line.calling(Call(Kind.STEP, rows=rows, draws=draws, number=count)):
            return self._lazy(self._own.step(rows, draws, count))

    def draft(self, rows: Sequence[RunRow], draws: Sequence[PlainDraw], steps: int) -> list[list[int]]:
        self._own.check_rows(rows)
        with self._line.calling(Call(Kind.DRAFT, rows=rows, draws=draws, number=steps)):
            return self._own.draft(rows, draws, steps)

    def grow(self, items: Sequence[BranchItem], draws: Draws) -> Stepped:
        self._own.check_branches(items)
        with self._line.calling(Call(Kind.GROW, items=items, draws=draws)):
            return self._lazy(self._own.grow(items, draws))

    def grow_on(self, items: Sequence[BranchItem], draws: Sequence[PlainDraw], steps: int) -> list[list[int]] | None:
        self._own.check_branches(items)
        with self._line.calling(Call(Kind.GROW_ON, items=items, draws=draws, number=steps)):
            return self._own.grow_on(items, draws, steps)

    def _lazy(self, stepped: Stepped) -> Stepped:
        """Whole logits are put together from all ranks only when they are asked for; ids are waited for here, where a
        call that hangs is seen to be under way."""
        ids = stepped.ids
        return Stepped(lambda: ids, functools.partial(self._logits, stepped))

    def _logits(self, stepped: Stepped, wanted: Sequence[int]) -> torch.Tensor:
        with self._line.calling(Call(Kind.LOGITS, wanted=wanted)):
            return _computed(stepped.logits(wanted))


def _computed(logits: torch.Tensor) -> torch.Tensor:
    """Logits that are there: a call whose exchange hangs on the device must be seen to be under way."""
    if logits.is_cuda:
        torch.cuda.current_stream(logits.device).synchronize()
    return logits


def follow(runner: ModelRunner, receive: Callable[[], Call]) -> NoReturn:
    """Makes rank 0's calls for as long as they come; `receive` fails when they end."""
    stepped: Stepped | None = None
    while True:
        stepped = make(runner, receive(), stepped)


def make(runner: ModelRunner, call: Call, before: Stepped | None) -> Stepped | None:
    """Makes one call; the step whose logits the next one may ask for."""
    match call.kind:
        case Kind.NOOP:
            return before
        case Kind.LOGITS:
            if before is None:
                raise RuntimeError("logits asked for before any step")
            before.logits(call.wanted)
            return before
        case Kind.STEP:
            return _here(runner.step(call.rows, call.draws, call.number))
        case Kind.GROW:
            return _here(runner.grow(call.items, call.draws))
        case Kind.RUN:
            runner.run(call.rows)
        case Kind.RUN_BRANCHES:
            runner.run_branches(call.items)
        case Kind.DRAFT:
            runner.draft(call.rows, _all(call.draws), call.number)
        case Kind.GROW_ON:
            runner.grow_on(call.items, _all(call.draws), call.number)
    return None


def _here(stepped: Stepped) -> Stepped:
    """A step whose ids are there: no rank runs ahead of the others."""
    _ = stepped.ids
    return stepped


def _all(draws: Draws) -> list[PlainDraw]:
    return [draw for draw in draws if draw is not None]
