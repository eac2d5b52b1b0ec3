"""What target and draft say to each other in a simulation. The router stands beside the target."""

from __future__ import annotations

from dataclasses import dataclass

from ssd.simulator.text import Text
from ssd.speculation.governor import Decision
from ssd.speculation.outcomes import OutcomeTable
from ssd.speculation.proposal import Proposal


@dataclass(frozen=True, slots=True)
class News:
    """Target -> draft: `base_len` tokens are committed now, and how the next rounds are drafted.

    in_flight   the proposal that the target verifies next; () while it waits
    after_hit   whether it came from a table
    waiting     nothing is in flight and the target waits for an answer
    """

    sequence: int
    text: Text
    base_len: int
    in_flight: tuple[int, ...]
    after_hit: bool
    waiting: bool
    decision: Decision


@dataclass(frozen=True, slots=True)
class Anticipated:
    """Draft -> target: a table as far as it has grown, and F_0.. of its round."""

    sequence: int
    table: OutcomeTable
    fan_out: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Draft -> target: the proposal for a row that waits; an empty one means: do not wait.

    fan_out     F_0.. of the table of the round before, () if there was none
    from_table  the proposal is a branch of that table
    """

    sequence: int
    proposal: Proposal
    fan_out: tuple[int, ...]
    from_table: bool


@dataclass(frozen=True, slots=True)
class Closed:
    """Target -> draft: the sequence has ended."""

    sequence: int
