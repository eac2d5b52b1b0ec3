"""The governor under a load that changes: does it follow, and does it keep still in between?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ssd.simulator.arrivals import RowSteps
from ssd.simulator.policy import GovernedPolicy
from ssd.simulator.scenario import Scenario
from ssd.simulator.system import System
from ssd.speculation.prediction import Mode

SETTLING = 0.25
"""Share of a stretch that is left out of its rate: rows arrive at once and the first rounds are of the old setting."""


@dataclass(frozen=True)
class Stretch:
    """Some time under one load.

    tokens_per_s       once settled
    changes_per_row    changes of mode in the whole stretch, trials apart
    modes              rounds in each mode once settled
    """

    rows: int
    tokens_per_s: float
    changes_per_row: float
    modes: dict[Mode, int]


def run_load(scenario: Scenario, rows: Sequence[int], seconds: float) -> list[Stretch]:
    """`seconds` of each number of rows in turn."""
    steps = tuple((index * seconds, count) for index, count in enumerate(rows))
    system = System(replace(scenario, arrivals=RowSteps(steps)))
    governed = [policy for policy in system.policies if isinstance(policy, GovernedPolicy)]
    stretches: list[Stretch] = []
    for index, count in enumerate(rows):
        changes = sum(policy.mode_changes for policy in governed)
        first = system.run_seconds((index + SETTLING) * seconds)
        modes = system.totals.modes.copy()
        last = system.run_seconds((index + 1) * seconds)
        stretches.append(
            Stretch(
                count,
                (last.tokens - first.tokens) / (last.seconds - first.seconds),
                (sum(policy.mode_changes for policy in governed) - changes) / max(1, count),
                dict(system.totals.modes - modes),
            )
        )
    return stretches
