"""How many next tokens the draft anticipates for each acceptance length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class FanOut(Protocol):
    """A rule that shares the branches of one round out among the acceptance lengths."""

    def allocate(self, depth_in_flight: int) -> tuple[int, ...]:
        """F_0..F_K for an in-flight proposal of K = depth_in_flight tokens: K + 1 numbers, each >= 0."""
        ...


@dataclass(frozen=True, slots=True)
class UniformFanOut:
    """`fan_out` candidates for every k.

    With nothing in flight only k = 0 can happen, so it gets what a proposal of `proposal_len` tokens would have got
    in all.
    """

    fan_out: int
    proposal_len: int = 0

    def __post_init__(self) -> None:
        _check_not_negative(fan_out=self.fan_out, proposal_len=self.proposal_len)

    def allocate(self, depth_in_flight: int) -> tuple[int, ...]:
        _check_not_negative(depth_in_flight=depth_in_flight)
        if depth_in_flight == 0:
            return (self.fan_out * (self.proposal_len + 1),)
        return (self.fan_out,) * (depth_in_flight + 1)


@dataclass(frozen=True, slots=True)
class BudgetUniform:
    """`budget` branches shared as evenly as possible.

    What is left over goes to k = K first, then to k = 0, 1, ...: full acceptance is the likeliest single outcome of a
    good draft, and short acceptances are likelier than long ones.
    """

    budget: int

    def __post_init__(self) -> None:
        _check_not_negative(budget=self.budget)

    def allocate(self, depth_in_flight: int) -> tuple[int, ...]:
        _check_not_negative(depth_in_flight=depth_in_flight)
        share, left = divmod(self.budget, depth_in_flight + 1)
        order = [depth_in_flight, *range(depth_in_flight)]
        favoured = frozenset(order[:left])
        return tuple(share + (k in favoured) for k in range(depth_in_flight + 1))


def _check_not_negative(**values: int) -> None:
    for name, value in values.items():
        if value < 0:
            raise ValueError(f"{name} must not be negative, got {value}")
