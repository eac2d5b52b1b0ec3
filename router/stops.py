"""Stop texts in a stream: where the first one ends, and how much text must be held back because one may have begun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scan:
    """`text` may go out. `stop` is the stop text that was completed, or None; nothing after it is ever shown."""

    text: str
    stop: str | None = None


class StopTexts:
    """Watches one text for several stop texts, a character at a time, whatever the pieces it comes in.

    The stop text that is completed first wins; of several completed by the same character, the longest.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """include: a matched stop text is a part of the output."""
        self._patterns = [_Pattern(stop) for stop in sorted(set(stops), key=len, reverse=True)]
        self._first_characters = {stop[0] for stop in stops}
        self._include = include
        self._held = ""

    def push(self, piece: str, *, active: bool = True) -> Scan:
        """Take in the next piece of text. A stop text completed while not `active` does not count."""
        if not self._patterns:
            return Scan(piece)
        if not self._held and self._first_characters.isdisjoint(piece):
            return Scan(piece)
        before = self._held
        for position, character in enumerate(piece):
            completed = [pattern for pattern in self._patterns if pattern.advance(character)]
            if completed and active:
                return self._matched(before + piece[: position + 1], completed[0].text)
        text = before + piece
        keep = max(pattern.matched for pattern in self._patterns)
        self._held = text[len(text) - keep :]
        return Scan(text[: len(text) - keep])

    def flush(self) -> str:
        """The text is at its end: what was held back is ordinary text after all."""
        held, self._held = self._held, ""
        return held

    def _matched(self, text: str, stop: str) -> Scan:
        self._held = ""
        return Scan(text if self._include else text[: len(text) - len(stop)], stop)


class _Pattern:
    """One stop text and how many of its characters the text now ends with (Knuth, Morris and Pratt's automaton)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._fallback = _fallbacks(text)

    def advance(self, character: str) -> bool:
        """True if the stop text is complete with this character."""
        while self.matched and self.text[self.matched] != character:
            self.matched = self._fallback[self.matched - 1]
        if self.text[self.matched] == character:
            self.matched += 1
        if self.matched < len(self.text):
            return False
        self.matched = self._fallback[self.matched - 1]
        return True


def _fallbacks(text: str) -> list[int]:
    """For each prefix of `text`: the length of its longest proper suffix that is a prefix of `text`."""
    lengths = [0] * len(text)
    length = 0
    for i in range(1, len(text)):
        while length and text[i] != text[length]:
            length = lengths[length - 1]
        length += text[i] == text[length]
        lengths[i] = length
    return lengths
