"""Steps of sizes that come again and again, each prepared once; what is too large or too rare is left to the runner."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import structlog
import torch

from ssd.runtime.draws import PlainDraw
from ssd.runtime.rows import BranchItem, RunRow
from ssd.runtime.static_step import BranchStep, RowStep, Shared
from ssd.runtime.step_sizes import BranchSize, StepSize, StepSizes

log = structlog.get_logger()

PREPARED_AT_START = 256
"""Most steps prepared before serving, the likeliest first; the rest are prepared when they are first met."""

Ids = np.ndarray[Any, Any]
Draws = Sequence[PlainDraw | None]


@dataclass(frozen=True)
class Ran:
    """A step that has been launched. `places`: where its wanted tokens stand among all of its tokens."""

    step: RowStep | BranchStep
    places: Sequence[int]

    def ids(self, steps: int = 1) -> Ids:
        """[steps, wanted, count] ids, best first, UNDRAWABLE where there are none; waits for the device."""
        return self.step.fetch(steps)[:, list(self.places)]

    def send(self) -> None:
        """Has the ids of the one step that was launched brought here; `arrived` and `received` are about them."""
        self.step.results.send(1)

    @property
    def arrived(self) -> bool:
        return self.step.results.arrived

    def received(self) -> Ids:
        """[wanted, count] ids that were sent; waits for the device."""
        return self.step.results.received(1)[0, list(self.places)]

    def logits(self, wanted: Sequence[int]) -> torch.Tensor:
        """Logits [len(wanted), V] of wanted tokens, by their number."""
        places = [self.places[i] for i in wanted]
        return self.step.shared.head.whole(self.step.shared.scores[places])


class FastSteps:
    """Keeps the prepared steps, and runs them."""

    def __init__(self, shared: Shared, sizes: StepSizes) -> None:
        self.shared = shared
        self.sizes = sizes
        self._rows: dict[StepSize, RowStep] = {}
        self._branches: dict[BranchSize, BranchStep] = {}

    @property
    def prepared(self) -> int:
        """Sizes that are ready to run."""
        return len(self._rows) + len(self._branches)

    def prepare(self, most: int = PREPARED_AT_START) -> None:
        """Prepares what the demand can lead to, so that serving meets nothing new."""
        # Largest first: what they need of the graphs' memory is enough for all others.
        branches = list(self.sizes.branches())[: most // 2]
        for size in reversed(branches):
            self._branch_step(size)
        for step in reversed(list(self.sizes.steps())[: most - len(branches)]):
            self._row_step(step)

    def run(self, rows: Sequence[RunRow], draws: Draws, count: int = 1) -> Ran | None:
        """One step over all rows, with a draw (or None) for each wanted token; None where there is no such size."""
        # Of several candidates more are ranked than asked for, so that one graph serves most of these steps.
        size = self._size_of(rows, count if count == 1 else max(count, self.sizes.demand.candidates))
        if size is None:
            return None
        step = self._row_step(size)
        places = wanted_places(rows)
        step.fill(rows)
        step.put_draws(places, draws)
        step.inputs.upload()
        step.run()
        return Ran(step, places)

    def draft(self, rows: Sequence[RunRow], draws: Sequence[PlainDraw], steps: int) -> Ids | None:
        """`steps` tokens behind each row, one drawn after the other: [steps, rows]. The tables have slots for all but
        the last of them. None where there is no such size."""
        counts, ends = [len(row.ids) for row in rows], [row.start + len(row.ids) for row in rows]
        width = max(len(row.table.blocks) for row in rows)
        first = self.sizes.of_step(len(rows), sum(counts), max(counts), width)
        following = self.sizes.of_step(len(rows), len(rows), 1, width)
        if first is None or following is None or steps > self.shared.chain:
            return None
        places = wanted_places(rows)
        step = self._row_step(first)
        step.fill(rows)
        step.put_draws(places, draws)
        step.inputs.upload()
        if first == following:
            step.run(steps)
            return step.fetch(steps)[:, places, 0]
        step.run()
        if steps == 1:
            return step.fetch()[:, places, 0]
        # Only the first step brings several tokens of a row; what is filled in here stands one token further on.
        then = self._row_step(following)
        then.fill([RunRow((0,), end, row.table) for row, end in zip(rows, ends, strict=True)])
        then.put_draws(range(len(rows)), [PlainDraw(one.seed, one.position + 1, one.temperature) for one in draws])
        then.put_source(places)
        then.inputs.upload()
        then.follow(step)
        then.run(steps - 1)
        return np.concatenate([step.fetch()[:, places, 0], then.fetch(steps - 1)[:, : len(rows), 0]])

    def grow(self, items: Sequence[BranchItem], draws: Draws, steps: int = 1) -> Ran | None:
        """`steps` tokens more for each branch, drawn one after the other. None where there is no such size."""
        trunks = {id(item.trunk): item.trunk for item in items}
        depth = max(len(item.suffix_slots) + len(item.later_slots) for item in items)
        width = max(len(trunk.blocks) for trunk in trunks.values())
        size = self.sizes.of_branches(len(trunks), len(items), width, depth)
        if size is None or steps > self.shared.chain:
            return None
        step = self._branch_step(size)
        step.fill(items)
        step.put_draws(range(len(items)), draws)
        step.inputs.upload()
        step.run(steps)
        return Ran(step, range(len(items)))

    def _size_of(self, rows: Sequence[RunRow], count: int) -> StepSize | None:
        counts = [len(row.ids) for row in rows]
        width = max(-(-(row.start + len(row.ids)) // self.shared.kv.block_size) for row in rows)
        return self.sizes.of_step(len(rows), sum(counts), max(counts), width, count)

    def _row_step(self, size: StepSize) -> RowStep:
        step = self._rows.get(size)
        if step is None:
            log.debug("step prepared", size=size)
            step = self._rows[size] = RowStep(self.shared, size)
        return step

    def _branch_step(self, size: BranchSize) -> BranchStep:
        step = self._branches.get(size)
        if step is None:
            log.debug("step prepared", size=size)
            step = self._branches[size] = BranchStep(self.shared, size)
        return step


def wanted_places(rows: Sequence[RunRow]) -> list[int]:
    """Among all tokens of the rows, those that get logits."""
    stop = 0
    places: list[int] = []
    for row in rows:
        stop += len(row.ids)
        places.extend(range(stop - row.logits, stop))
    return places
