"""How many sequences there are to serve, and when they come."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

from ssd.simulator.events import EventQueue


class Service(Protocol):
    """What arrivals may ask for."""

    @property
    def live(self) -> int:
        """Sequences now being served."""
        ...

    def open(self) -> None: ...

    def close_newest(self) -> None: ...


class Arrivals(Protocol):
    """Opens sequences; told when one has ended."""

    def begin(self, queue: EventQueue, service: Service, source: random.Random) -> None: ...

    def ended(self, queue: EventQueue, service: Service) -> None: ...


@dataclass(frozen=True)
class ConstantRows:
    """Always the same number of sequences: a new one for each that ends."""

    rows: int

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"there must be at least one row, got {self.rows}")

    def begin(self, queue: EventQueue, service: Service, source: random.Random) -> None:
        _bring_to(service, self.rows)

    def ended(self, queue: EventQueue, service: Service) -> None:
        _bring_to(service, self.rows)


@dataclass(frozen=True)
class RowSteps:
    """Another number of sequences from stated times on: (seconds since the start, rows), the first at 0."""

    steps: tuple[tuple[float, int], ...]

    def __post_init__(self) -> None:
        times = [time for time, _ in self.steps]
        if not times or times[0] != 0.0 or sorted(times) != times or min(rows for _, rows in self.steps) < 0:
            raise ValueError(f"steps begin at 0, in the order of their times, and have no negative rows: {self.steps}")

    def begin(self, queue: EventQueue, service: Service, source: random.Random) -> None:
        for time, rows in self.steps:
            queue.after(time, lambda rows=rows: _bring_to(service, rows))  # type: ignore[misc]  # bound early

    def ended(self, queue: EventQueue, service: Service) -> None:
        _bring_to(service, next(rows for time, rows in reversed(self.steps) if time <= queue.now))


class PoissonArrivals:
    """Sequences come at random, `per_s` of them a second; those beyond `most` wait for their turn."""

    def __init__(self, per_s: float, most: int) -> None:
        if per_s <= 0.0 or most < 1:
            raise ValueError(f"arrivals need a positive rate and room for one row, got {per_s} and {most}")
        self.per_s, self.most = per_s, most
        self._queued = 0

    def begin(self, queue: EventQueue, service: Service, source: random.Random) -> None:
        self._queued = 0

        def come() -> None:
            self._queued += 1
            self._admit(service)
            queue.after(source.expovariate(self.per_s), come)

        queue.after(source.expovariate(self.per_s), come)

    def ended(self, queue: EventQueue, service: Service) -> None:
        self._admit(service)

    def _admit(self, service: Service) -> None:
        while self._queued and service.live < self.most:
            self._queued -= 1
            service.open()


def _bring_to(service: Service, rows: int) -> None:
    while service.live < rows:
        service.open()
    while service.live > rows:
        service.close_newest()
