"""What is measured: every combination of batch size, temperature, mode and its numbers, and in which order."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ssd.cli.request import GenerateOptions
from ssd.config import ANY_MODE
from ssd.errors import FieldError


@dataclass(frozen=True)
class Case:
    """One setting. fan_out: branches for each acceptance length (uniform); budget: branches of a table (measured)."""

    batch: int
    temperature: float
    mode: str
    k: int | None = None
    fan_out: int | None = None
    budget: int | None = None

    @property
    def label(self) -> str:
        """The mode and its numbers, without batch and temperature."""
        numbers = (("K", self.k), ("F", self.fan_out), ("B", self.budget))
        return " ".join([self.mode.upper(), *(f"{name}={value}" for name, value in numbers if value is not None)])

    def options(self, seed: int, max_tokens: int, ignore_eos: bool) -> GenerateOptions:
        """The request's parameters."""
        return GenerateOptions(
            mode=self.mode,
            k=self.k,
            fan_out=self.fan_out,
            budget=self.budget,
            temperature=self.temperature,
            seed=seed,
            max_tokens=max_tokens,
            ignore_eos=ignore_eos,
        )


@dataclass(frozen=True)
class Grid:
    """What is combined. SD is measured for every k, so that its best one is known; SSD for every one of ssd_ks with
    every fan-out or budget; AR and AUTO once."""

    modes: tuple[str, ...] = ANY_MODE
    batches: tuple[int, ...] = (1,)
    temperatures: tuple[float, ...] = (0.0,)
    ks: tuple[int, ...] = (2, 4, 6)
    ssd_ks: tuple[int, ...] = ()
    """Empty = those of SD."""
    fan_outs: tuple[int, ...] = ()
    budgets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for mode in self.modes:
            if mode not in ANY_MODE:
                raise FieldError("modes", f"no mode {mode!r}; there are {', '.join(ANY_MODE)}")
        for name in ("modes", "batches", "temperatures"):
            if not getattr(self, name):
                raise FieldError(name, "at least one is needed")
        for name in ("batches", "ks", "ssd_ks", "fan_outs", "budgets"):
            if any(value < 1 for value in getattr(self, name)):
                raise FieldError(name, "must be at least 1")
        if any(value < 0 for value in self.temperatures):
            raise FieldError("temperatures", "must not be negative")
        if {"sd", "ssd"} & set(self.modes) and not self.ks and not self.ssd_ks:
            raise FieldError("k", "SD and SSD need at least one")

    def cases(self) -> list[Case]:
        """Every combination, in the order of the table."""
        return [
            case
            for batch, temperature in itertools.product(self.batches, self.temperatures)
            for mode in dict.fromkeys(self.modes)
            for case in self._of(mode, batch, temperature)
        ]

    def _of(self, mode: str, batch: int, temperature: float) -> Iterator[Case]:
        if mode in ("ar", "auto"):
            yield Case(batch, temperature, mode)
        elif mode == "sd":
            yield from (Case(batch, temperature, mode, k) for k in self.ks)
        else:
            for k in self.ssd_ks or self.ks:
                yield from (Case(batch, temperature, mode, k, fan_out=fan_out) for fan_out in self.fan_outs)
                yield from (Case(batch, temperature, mode, k, budget=budget) for budget in self.budgets)
                if not self.fan_outs and not self.budgets:
                    yield Case(batch, temperature, mode, k)


def schedule(cases: Sequence[Case], repeats: int) -> Iterator[tuple[int, Case]]:
    """(repeat, case): every case once in each repeat, and every other repeat backwards, so that a machine that gets
    slower or faster meanwhile favours none."""
    for repeat in range(repeats):
        for case in cases if repeat % 2 == 0 else reversed(cases):
            yield repeat, case
