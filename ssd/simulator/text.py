"""What a sequence says, and how well the draft guesses it.

With coupled verification the target's text is a function of its seed, and at every position the true token has a place
in the draft's list of candidates. That rank is all that speculation depends on: a proposal token is accepted where
the rank is 1, and an outcome is in a table where the rank is within the fan-out. So a process of ranks is the whole of
a pair of models, and every setting meets the same text.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_VOCABULARY = 50_000


class RankProcess(Protocol):
    """Ranks of the true tokens in the draft's candidates, position after position."""

    def ranks(self, sequence: int, seed: int) -> RankSource: ...


class RankSource(Protocol):
    """The ranks of one sequence; asked for in order."""

    def next(self, position: int) -> int:
        """Rank >= 1 of the true token at `position`."""
        ...


@dataclass(frozen=True)
class GeometricProcess:
    """Tokens are accepted independently; the true token is beyond place f of the others with probability (f + 1)^-r.

    acceptance   a, chance that the true token is the first candidate
    exponent     r of the power law of the places behind the first
    """

    acceptance: float
    exponent: float = 0.8

    def __post_init__(self) -> None:
        if not 0.0 <= self.acceptance <= 1.0 or self.exponent <= 0.0:
            raise ValueError(f"acceptance must be in [0, 1] and the exponent positive: {self}")

    def ranks(self, sequence: int, seed: int) -> RankSource:
        return _Geometric(self, random.Random(seed * 1_000_003 + sequence))

    def covered(self, fan_out: int, *, bonus: bool) -> float:
        """h(fan_out): after full acceptance (bonus), or after the refusal of a proposal token."""
        if fan_out == 0:
            return 0.0
        if bonus:
            return 1.0 - (1.0 - self.acceptance) * float(fan_out) ** -self.exponent
        return 1.0 - (fan_out + 1.0) ** -self.exponent


class _Geometric:
    def __init__(self, process: GeometricProcess, source: random.Random) -> None:
        self._acceptance, self._power = process.acceptance, -1.0 / process.exponent
        self._source = source

    def next(self, position: int) -> int:
        if self._source.random() < self._acceptance:
            return 1
        # The place among the others is p with probability p^-r - (p + 1)^-r.
        return 1 + int(min(1e9, (1.0 - self._source.random()) ** self._power))


@dataclass(frozen=True)
class TraceProcess:
    """Ranks recorded from a real pair of models: a list for each text, used in turn, and again from its start.

    0 stands for a true token that was not among the recorded candidates.
    """

    recorded: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.recorded or any(not ranks or min(ranks) < 0 for ranks in self.recorded):
            raise ValueError("a trace needs texts of at least one rank each, and no rank below 0")

    @classmethod
    def read(cls, path: Path) -> TraceProcess:
        """From JSON lines, each a list of ranks or an object with the field "ranks"; ValueError names a bad line."""
        texts: list[tuple[int, ...]] = []
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}:{number}: not JSON: {error}") from error
            ranks = value.get("ranks") if isinstance(value, dict) else value
            if not isinstance(ranks, list) or any(type(rank) is not int for rank in ranks):
                raise ValueError(f"{path}:{number}: expected a list of ranks")
            texts.append(tuple(ranks))
        return cls(tuple(texts))

    def ranks(self, sequence: int, seed: int) -> RankSource:
        return _Recorded(self.recorded[(sequence + seed) % len(self.recorded)])


class _Recorded:
    def __init__(self, recorded: Sequence[int]) -> None:
        self._recorded = recorded

    def next(self, position: int) -> int:
        return self._recorded[position % len(self._recorded)] or 1_000_000_000


class Text:
    """The ids that the target will commit for one sequence, and what draft and prompt lookup say in their place.

    The true ids are even numbers and all guesses that are wrong are odd, so that nothing agrees by accident.
    """

    def __init__(self, sequence: int, process: RankProcess, seed: int, ngram_acceptance: float | None = None) -> None:
        self._offset = sequence * 7919
        self._source = process.ranks(sequence, seed)
        self._ranks: list[int] = []
        self._ngram_acceptance = ngram_acceptance
        self._ngram_source = random.Random(seed * 1_000_003 + sequence + 500_009)

    def rank(self, position: int) -> int:
        while len(self._ranks) <= position:
            self._ranks.append(self._source.next(len(self._ranks)))
        return self._ranks[position]

    def token(self, position: int) -> int:
        return 2 * ((self._offset + 31 * position) % _VOCABULARY)

    def ids(self, start: int, end: int) -> tuple[int, ...]:
        """The committed ids of positions start..end - 1."""
        return tuple(self.token(position) for position in range(start, end))

    def drafted(self, start: int, count: int) -> tuple[int, ...]:
        """What the draft says after the first `start` tokens: right up to its first mistake."""
        right = 0
        while right < count and self.rank(start + right) == 1:
            right += 1
        return self.ids(start, start + right) + (1,) * (count - right)

    def looked_up(self, start: int, count: int) -> tuple[int, ...]:
        """What prompt lookup says after the first `start` tokens; () where there is none."""
        if self._ngram_acceptance is None:
            return ()
        right = 0
        while right < count and self._ngram_source.random() < self._ngram_acceptance:
            right += 1
        return self.ids(start, start + right) + (1,) * (count - right)

    def accepted(self, base_len: int, proposal: Sequence[int]) -> int:
        """How many tokens of a proposal at base_len the target accepts."""
        k = 0
        while k < len(proposal) and proposal[k] == self.token(base_len + k):
            k += 1
        return k

    def place(self, base_len: int, proposal: Sequence[int], accepted: int) -> int:
        """Place, from 1, of the true token after `accepted` tokens among the draft's candidates for that outcome: the
        refused token is not one of them."""
        rank = self.rank(base_len + accepted)
        refused_first = accepted < len(proposal) and rank > 1
        return rank - 1 if refused_first else rank
