"""Laws that travel on a plane, looked up when a prediction is about to be verified and not before.

Most branches of a table never come to be: their laws are not even unpacked.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ssd.speculation.cache import Found
from ssd.speculation.law import LawRef, drawable
from ssd.tensor_plane.planes import LawReceiver
from ssd.tensor_plane.store import Absent
from target_service.sequence import LiveSequence


class LawLookup:
    """What planes hold for predictions, and the sequences that a law is late for."""

    def __init__(self, planes: LawReceiver, vocab_size: int) -> None:
        self.drops: Counter[str] = Counter()  # predictions whose laws were not there when wanted, by reason
        self._planes = planes
        self._vocab_size = vocab_size
        self._late: dict[LiveSequence, None] = {}

    def opened(self, sequence: LiveSequence, found: Found) -> Found | None:
        """A prediction with its laws at hand, up to the first that is not; a miss, None, where it is the very first."""
        absent = Absent.GONE
        laws = []
        for law in found.laws:
            here = self._planes.law(sequence.stream, law) if isinstance(law, LawRef) else law
            if isinstance(here, Absent):
                absent = here
                break
            laws.append(here)
        if laws or not found.laws:
            ids, good = drawable(found.ids, laws, self._vocab_size) if laws else (found.ids, ())
            if ids:
                return replace(found, ids=ids, laws=good)
        self._lacks(sequence, absent)
        return None

    def is_late(self, sequence: LiveSequence) -> bool:
        """Whether a law is still to come for it."""
        return sequence in self._late

    def take_late(self) -> list[LiveSequence]:
        """Sequences to look up again, now that something has come."""
        late, self._late = list(self._late), {}
        return late

    def _lacks(self, sequence: LiveSequence, absent: Absent) -> None:
        if absent is Absent.LATE:
            self._late[sequence] = None
        if sequence.lacking_at != sequence.length:  # once a round, however often it is asked
            sequence.lacking_at = sequence.length
            self.drops[absent.value] += 1
