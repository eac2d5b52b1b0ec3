"""The governor against every fixed setting, over batch sizes, acceptances, draft speeds and round trips.

What is best among the fixed settings is found by running them: many for a short time, the best of those for longer.
All runs of a cell meet the same text, and the last ones cover the same stretch of it, so that ratios are steadier than
rates.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ssd.simulator.arrivals import ConstantRows
from ssd.simulator.scenario import Scenario
from ssd.simulator.system import System
from ssd.simulator.text import GeometricProcess
from ssd.speculation.prediction import Fallback, Limits, Mode, Setting
from ssd.speculation.step_time import StepTime

VERIFY_S = 0.020
TARGET = StepTime(VERIFY_S, 2e-5, 1e-5, ((256, 8e-5),))
"""Bound by memory up to 256 tokens and by arithmetic beyond: a large model on one modern GPU."""

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
ACCEPTANCES = (0.4, 0.7, 0.9)
T_PRIMARY = (0.3, 1.0, 1.6)
ROUND_TRIPS = (0.0, 0.1, 0.5)
LIMITS = Limits()
JITTER = 0.03


@dataclass(frozen=True)
class Cell:
    """One system of the grid.

    t_primary    time of one row's table of depth 6 and 21 branches, in units of VERIFY_S
    round_trip   in the same unit
    """

    rows: int
    acceptance: float
    t_primary: float
    round_trip: float


@dataclass(frozen=True)
class CellResult:
    """Tokens per second of the governor and of the best setting of each mode; `setting` is the best of all."""

    cell: Cell
    auto: float
    best: float
    setting: Setting
    by_mode: dict[Mode, float]
    auto_mode: Mode

    @property
    def share(self) -> float:
        """What the governor reaches of the best fixed setting's throughput."""
        return self.auto / self.best


def all_cells() -> list[Cell]:
    """The whole grid."""
    return [Cell(*values) for values in itertools.product(ROWS, ACCEPTANCES, T_PRIMARY, ROUND_TRIPS)]


def draft_for(t_primary: float) -> StepTime:
    """A draft whose table of depth 6 (7 passes) and 21 branches takes t_primary verifications."""
    step = t_primary * VERIFY_S / 7.0
    return StepTime(0.9 * step, 0.0, 0.1 * step / 24.0)


def scenario_of(cell: Cell, setting: Setting | None, seed: int = 1) -> Scenario:
    """A cell's system under a fixed setting, or (None) under the governor."""
    return Scenario(
        target=TARGET,
        draft=draft_for(cell.t_primary),
        process=GeometricProcess(cell.acceptance),
        round_trip_s=cell.round_trip * VERIFY_S,
        arrivals=ConstantRows(cell.rows),
        setting=setting,
        limits=LIMITS,
        jitter=JITTER,
        seed=seed,
    )


def run_cell(cell: Cell, *, effort: float = 1.0, seed: int = 1) -> CellResult:
    """Measure one cell from some 300 rounds after its start on. effort: length of the runs."""
    rows = cell.rows
    begin, length = effort * (4000 + 900 * rows), effort * (6000 + 60 * rows)
    system = System(scenario_of(cell, None, seed))
    auto = _rate(system, begin, length)
    window = (30.0 * rows, 0.15 * length)
    short = {setting: _measure(cell, setting, window, seed) for setting in coarse_settings(rows)}
    by_mode = {mode: max(rate for setting, rate in short.items() if setting.mode is mode) for mode in Mode}
    for _ in range(2):
        centre = max(short, key=lambda setting: short[setting])
        for setting in neighbours(centre):
            if setting not in short:
                short[setting] = _measure(cell, setting, window, seed)
    ranked = sorted(short, key=lambda setting: -short[setting])
    middle = {setting: _measure(cell, setting, (window[0], 0.4 * length), seed) for setting in ranked[:6]}
    finalists = sorted(middle, key=lambda setting: -middle[setting])[:2]
    final = {setting: _measure(cell, setting, (begin, length), seed) for setting in finalists}
    best = max(final, key=lambda setting: final[setting])
    by_mode[best.mode] = final[best]
    mode = system.totals.modes.most_common(1)[0][0]
    return CellResult(cell, auto, final[best], best, by_mode, mode)


def coarse_settings(rows: int) -> Iterator[Setting]:
    """Settings all over what the governor may choose among."""
    yield Setting()
    for k in range(1, LIMITS.max_k + 1):
        yield Setting(Mode.SD, k)
    fallbacks = (Fallback.NONE, Fallback.JIT) if rows <= 2 else (Fallback.NONE,)
    for depth, budget, fallback in itertools.product((1, 2, 3, 4, 6, 8), (4, 12, 24, 48), fallbacks):
        yield Setting(Mode.SSD, depth, budget, depth, fallback)


def neighbours(setting: Setting) -> Iterator[Setting]:
    """Settings that differ a little from one of mode SSD."""
    if setting.mode is not Mode.SSD:
        return
    for depth in (setting.depth - 1, setting.depth, setting.depth + 1):
        for budget in (setting.budget * 2 // 3, setting.budget, min(LIMITS.max_budget, setting.budget * 4 // 3)):
            if 1 <= depth <= LIMITS.max_k and budget >= 1:
                yield replace(setting, k=max(depth, setting.k), depth=depth, budget=budget)


def _measure(cell: Cell, setting: Setting, window: tuple[float, float], seed: int) -> float:
    return _rate(System(scenario_of(cell, setting, seed)), *window)


def _rate(system: System, begin: float, length: float) -> float:
    """Tokens per second while the tokens begin..begin + length are committed."""
    first, last = system.run_tokens(begin), system.run_tokens(begin + length)
    return (last.tokens - first.tokens) / (last.seconds - first.seconds)


def worst(results: Sequence[CellResult]) -> CellResult:
    """The cell in which the governor falls behind the most."""
    return min(results, key=lambda result: result.share)
