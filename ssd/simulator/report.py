"""What a simulation found, as numbers, as a table, and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from ssd.simulator.scenario import Scenario
from ssd.simulator.system import System
from ssd.speculation.prediction import Mode

WARM_UP = 0.2
"""Share of a run that is not counted: the governor and the measured fan-outs learn in it."""


@dataclass(frozen=True)
class Outcome:
    """Throughput and what it comes from; shares are of rounds (of single rows) or of time.

    tokens_per_s       of all rows together
    tokens_per_round   of one row
    acceptance         of all proposed tokens
    hits, plain        rounds with a proposal from a table, and with none
    target_busy        share of the time in which a target runs a step; likewise draft_busy
    modes              share of rounds in each mode, as decided
    """

    tokens_per_s: float
    tokens_per_row_s: float
    tokens_per_round: float
    acceptance: float
    hits: float
    plain: float
    target_busy: float
    draft_busy: float
    modes: Mapping[str, float]


def simulate(scenario: Scenario, tokens: float) -> Outcome:
    """Run a scenario until so many tokens are committed beyond the warm-up."""
    system = System(scenario)
    first = system.run_tokens(WARM_UP * tokens)
    last = system.run_tokens((1.0 + WARM_UP) * tokens)
    seconds, rounds = last.seconds - first.seconds, max(1, last.rounds - first.rounds)
    proposed = last.proposed - first.proposed
    rate = (last.tokens - first.tokens) / seconds
    decided = system.totals.modes
    targets, drafts = (
        sum(engine.timer.busy_s for engine in engines) / (len(engines) * last.seconds) if engines else 0.0
        for engines in (system.targets, system.drafts)
    )
    return Outcome(
        tokens_per_s=rate,
        tokens_per_row_s=rate / max(1, system.live),
        tokens_per_round=(last.tokens - first.tokens) / rounds,
        acceptance=(last.accepted - first.accepted) / proposed if proposed else 0.0,
        hits=(last.hits - first.hits) / rounds,
        plain=(last.plain - first.plain) / rounds,
        target_busy=targets,
        draft_busy=drafts,
        modes={mode.value: decided[mode] / max(1, decided.total()) for mode in Mode if decided[mode]},
    )


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table with its columns aligned."""
    widths = [max(len(line[i]) for line in (header, *lines)) for i in range(len(header))]

    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([row(header), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(row, lines)])


def write_json(path: Path, value: Any) -> None:
    """Dataclasses, enums and paths become plain JSON. Raises OSError."""
    path.write_text(json.dumps(plain(value), indent=2) + "\n")


def plain(value: Any) -> Any:
    """`value` in the terms of JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def put_between_marks(path: Path, name: str, text: str) -> None:
    """Replace what stands in a file between `<!-- name -->` and `<!-- end of name -->`. Raises like `marks`."""
    before, after = marks(path, name)
    path.write_text(f"{before}\n{text}\n\n{after}")


def marks(path: Path, name: str) -> tuple[str, str]:
    """What stands before and behind such a place, its marks included. Raises OSError, or ValueError where the marks
    are missing."""
    before, opening, rest = path.read_text().partition(f"<!-- {name} -->\n")
    _, closing, after = rest.partition(f"<!-- end of {name} -->")
    if not opening or not closing:
        raise ValueError(f"{path} has no marks <!-- {name} --> and <!-- end of {name} -->")
    return before + opening, closing + after
