"""The sequences of all streams, and which numbers were used up."""

from __future__ import annotations

from target_service.sequence import LiveSequence

REMEMBERED = 1024
"""Ended sequences remembered for each stream."""


class Roster:
    """Live sequences in order of arrival. A number is used once on a stream, so an open that comes after the end of its
    sequence, or after its close, is a doubled or late message and must not start a generation that nobody would end."""

    def __init__(self) -> None:
        self.live: dict[tuple[int, int], LiveSequence] = {}
        self._ended: dict[int, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self.live)

    def get(self, stream: int, number: int) -> LiveSequence | None:
        """A live sequence."""
        return self.live.get((stream, number))

    def holds(self, sequence: LiveSequence) -> bool:
        """Whether this very sequence is still live."""
        return self.live.get((sequence.stream, sequence.id)) is sequence

    def used(self, stream: int, number: int) -> bool:
        """Whether the number belongs to a sequence that is live or ended not long ago."""
        return (stream, number) in self.live or number in self._ended.get(stream, ())

    def add(self, sequence: LiveSequence) -> None:
        """A new sequence."""
        self.live[sequence.stream, sequence.id] = sequence

    def end(self, stream: int, number: int) -> None:
        """The number is used up, whether or not its sequence is live."""
        self.live.pop((stream, number), None)
        ended = self._ended.setdefault(stream, {})
        ended[number] = None
        if len(ended) > REMEMBERED:
            del ended[next(iter(ended))]

    def of_stream(self, stream: int) -> list[LiveSequence]:
        """All live sequences of a stream."""
        return [sequence for sequence in self.live.values() if sequence.stream == stream]

    def forget(self, stream: int) -> None:
        """The stream is gone, and its numbers with it."""
        self._ended.pop(stream, None)
