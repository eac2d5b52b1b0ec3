"""What carries bundles from a draft to a target: one direction, every wait with a limit.

A bundle is a few tensors under a number that grows. Only the two threads that own the ends send and receive; `abort`
may be called from any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

MOST_BYTES = 8 << 20
"""Largest bundle. Whatever is larger takes another way."""


class Broken(Exception):
    """The channel is of no use any more; the message says why."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Taken when a channel was opened. latency_s: one way. bandwidth: bytes per second."""

    latency_s: float = 0.0
    bandwidth: float = 0.0


@dataclass(frozen=True, slots=True)
class Bundle:
    """What arrived under a number; no tensors = they made no sense and were dropped."""

    number: int
    tensors: tuple[Tensor, ...]


class Channel(Protocol):
    """One end. Everything raises Broken when the other end is lost, or silent for longer than the channel's limit."""

    def begin_sending(self) -> Measured:
        """Draft: measure the way, and tell the target that it is open."""

    def begin_receiving(self) -> Measured:
        """Target: help the draft to measure until it says that the way is open."""

    def send(self, number: int, tensors: Sequence[Tensor]) -> None:
        """Hand a bundle over; returns once the tensors may be changed again. On a GPU they must be computed by now."""

    def beat(self) -> None:
        """Say that this end is alive."""

    def receive(self) -> Bundle | None:
        """Wait for the next bundle; None for a beat."""

    def abort(self) -> None:
        """Give up from any thread: what waits on this channel raises Broken, at the latest after its limit."""
