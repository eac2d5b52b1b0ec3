"""How long a row without a proposal holds still for its draft."""

from __future__ import annotations

from dataclasses import dataclass

GIVE_UP_AFTER = 3
"""Waits in a row that ran out before the draft is taken to be too slow to be worth waiting for."""


@dataclass(slots=True)
class Patience:
    """One row's waiting. The clock starts when a step first finds the row waiting: the miss itself has no clock, and
    the time that the step before it took is not the draft's."""

    limit_s: float
    waiting: bool = False
    deadline: float | None = None
    timeouts: int = 0
    since: float | None = None  # when the clock of the last wait started

    @property
    def exhausted(self) -> bool:
        """The draft has let too many waits run out."""
        return self.timeouts >= GIVE_UP_AFTER

    def begin(self) -> None:
        """A proposal is missing: wait, unless the draft has let too many waits run out."""
        self.waiting = not self.exhausted
        self.deadline = self.since = None

    def end(self) -> None:
        """Nothing to wait for, whatever the reason; not the draft's fault."""
        self.waiting = False
        self.deadline = None

    def answered(self) -> None:
        """The draft gave something of use."""
        self.end()
        self.timeouts = 0

    def tick(self, now: float) -> None:
        """Start the clock, or let the wait run out."""
        if not self.waiting:
            return
        if self.deadline is None:
            self.since, self.deadline = now, now + self.limit_s
        elif now >= self.deadline:
            self.end()
            self.timeouts += 1

    def wake_at(self, now: float) -> float:
        """When a waiting row needs the next tick."""
        return now if self.deadline is None else self.deadline

    def ran(self, now: float) -> float:
        """The row runs, waiting or not; seconds that it has stood still before."""
        waited = 0.0 if self.since is None else now - self.since
        self.end()
        self.since = None
        return waited
