"""The open sequences, by the stream they were opened on."""

from collections.abc import Iterable, Iterator

from draft_service.sequence import DraftSequence

CLOSED_REMEMBERED = 1024


class Stream:
    """One peer's sequences, and which it closed lately: an open that arrives after its own close must not revive
    one."""

    def __init__(self) -> None:
        self.open: dict[int, DraftSequence] = {}
        self.closed: dict[int, None] = {}

    def remember_closed(self, number: int) -> None:
        """Keep the number, and forget the oldest one when there are many."""
        self.closed[number] = None
        if len(self.closed) > CLOSED_REMEMBERED:
            del self.closed[next(iter(self.closed))]


class Streams:
    """Sequences of all streams."""

    def __init__(self) -> None:
        self._streams: dict[int, Stream] = {}

    def __len__(self) -> int:
        return sum(len(stream.open) for stream in self._streams.values())

    def __iter__(self) -> Iterator[DraftSequence]:
        """All open sequences, as they are now: some may be removed while this runs."""
        return iter([sequence for stream in self._streams.values() for sequence in stream.open.values()])

    def seen(self, stream: int, number: int) -> bool:
        """Whether the number is open, or was closed by the peer not long ago."""
        held = self._streams.get(stream)
        return held is not None and (number in held.open or number in held.closed)

    def get(self, stream: int, number: int) -> DraftSequence | None:
        """An open sequence."""
        held = self._streams.get(stream)
        return None if held is None else held.open.get(number)

    def add(self, sequence: DraftSequence) -> None:
        """A new open sequence."""
        self._streams.setdefault(sequence.stream, Stream()).open[sequence.number] = sequence

    def remove(self, sequence: DraftSequence) -> None:
        """A sequence that is given up; the peer may open its number again."""
        self._streams[sequence.stream].open.pop(sequence.number, None)

    def close(self, stream: int, number: int) -> DraftSequence | None:
        """The peer closes a number, known or not; returns its sequence if it is open."""
        held = self._streams.setdefault(stream, Stream())
        held.remember_closed(number)
        return held.open.pop(number, None)

    def end(self, stream: int) -> Iterable[DraftSequence]:
        """The stream is gone; returns what was open on it."""
        held = self._streams.pop(stream, None)
        return [] if held is None else list(held.open.values())
