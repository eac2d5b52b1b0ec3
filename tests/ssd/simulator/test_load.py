"""The governor follows a load that steps up and down, and keeps still in between."""

from __future__ import annotations

import pytest

from ssd.simulator.grid import Cell, scenario_of
from ssd.simulator.load import run_load
from ssd.simulator.report import simulate
from ssd.speculation.prediction import Fallback, Mode, Setting

# With this draft speculation pays for two rows and not for many.
SLOW = (0.5, 3.7, 0.3)
QUICK = (0.8, 0.3, 0.1)


def best_of(system, rows, settings):
    return max(
        simulate(scenario_of(Cell(rows, *system), setting), 1200 + 15 * rows).tokens_per_s for setting in settings
    )


def fixed(rows):
    fallback = Fallback.JIT if rows == 1 else Fallback.NONE
    deep = [Setting(Mode.SSD, depth, 4 * depth + 4, depth, fallback) for depth in (1, 3, 6)]
    return [Setting(), Setting(Mode.SD, 4), *deep]


def test_modes_change_with_the_load_and_not_within_it():
    system = SLOW
    loads = (2, 64, 2, 64, 2)
    stretches = run_load(scenario_of(Cell(2, *system), None), loads, 4.0)
    best = {rows: best_of(system, rows, fixed(rows)) for rows in set(loads)}
    for stretch in stretches:
        assert stretch.changes_per_row <= 2.0
        assert stretch.tokens_per_s >= 0.9 * best[stretch.rows], stretch
    for stretch in stretches[2:]:
        expected = Mode.SSD if stretch.rows == 2 else Mode.AR
        assert stretch.modes[expected] >= 0.95 * sum(stretch.modes.values())


def test_speculation_comes_back_at_full_speed_after_a_burst():
    stretches = run_load(scenario_of(Cell(2, *QUICK), None), (2, 32, 2, 1), 4.0)
    assert stretches[2].tokens_per_s == pytest.approx(stretches[0].tokens_per_s, rel=0.05)
    for stretch in stretches:
        assert stretch.tokens_per_s >= 0.93 * best_of(QUICK, stretch.rows, fixed(stretch.rows))
        assert set(stretch.modes) == {Mode.SSD} and stretch.changes_per_row == 0.0
