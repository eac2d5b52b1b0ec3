"""The clock of a simulation: what happens next, and when."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class EventQueue:
    """Actions in the order of their times; those of one time in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Do `action` `delay` seconds from now. Raises ValueError for the past."""
        if not delay >= 0.0:
            raise ValueError(f"nothing can happen in the past: a delay of {delay} s")
        heapq.heappush(self._heap, (self.now + delay, self._asked, action))
        self._asked += 1

    def step(self) -> bool:
        """Let the next action happen; False when there is none."""
        if not self._heap:
            return False
        self.now, _, action = heapq.heappop(self._heap)
        action()
        return True
