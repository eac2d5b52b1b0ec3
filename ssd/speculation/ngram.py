"""Prompt lookup: what followed the last time when the text ended like this. A proposal without any model."""

from __future__ import annotations

from collections.abc import Iterable

from ssd.speculation.proposal import Proposal


class NGramIndex:
    """The committed ids of one sequence, and where each n-gram of up to max_n ids was last followed by something.

    Committing a token costs max_n dictionary writes and a look-up at most max_n reads, whatever the length of the
    text. Memory grows with the text: up to max_n entries a token.
    """

    def __init__(self, ids: Iterable[int] = (), *, max_n: int = 3, min_n: int = 1) -> None:
        if not 1 <= min_n <= max_n:
            raise ValueError(f"n-grams need 1 <= min_n <= max_n, got {min_n} and {max_n}")
        self._sizes = range(max_n, min_n - 1, -1)
        self._ids: list[int] = []
        self._next: dict[tuple[int, ...], int] = {}
        self.extend(ids)

    def __len__(self) -> int:
        """Committed tokens, prompt included."""
        return len(self._ids)

    def extend(self, ids: Iterable[int]) -> None:
        """Commit further tokens."""
        for token in ids:
            # Only now do the n-grams at the end have a continuation; entered earlier, they would find themselves.
            end = len(self._ids)
            for size in self._sizes:
                if size <= end:
                    self._next[tuple(self._ids[end - size :])] = end
            self._ids.append(token)

    def propose(self, count: int) -> Proposal | None:
        """`count` ids after the committed text, None when its end is new or count < 1.

        They are copied from where the longest n-gram at the end stood last before. A copy that reaches the end of the
        text goes on with what it has itself appended, so that a loop in the text is followed round.
        """
        start = self._last_continuation()
        if start is None or count < 1:
            return None
        period = len(self._ids) - start
        copied = self._ids[start : start + count]
        while len(copied) < count:
            copied.append(copied[len(copied) - period])
        return Proposal(len(self._ids), tuple(copied))

    @property
    def matched(self) -> int:
        """Length of the n-gram at the end that stood in the text before; 0 = none."""
        return next((size for size in self._sizes if self._suffix(size) in self._next), 0)

    def _last_continuation(self) -> int | None:
        matched = self.matched
        return self._next[self._suffix(matched)] if matched else None

    def _suffix(self, size: int) -> tuple[int, ...]:
        """The last `size` ids; () when there are fewer, which matches nothing."""
        return tuple(self._ids[-size:]) if size <= len(self._ids) else ()
