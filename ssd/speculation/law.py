"""The law that one proposal token was drawn from, in the form in which it travels. Free of torch."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Law", "LawRef", "Laws", "SparseLaw", "check_laws", "drawable", "known_laws", "point_mass", "within"]


@dataclass(frozen=True, slots=True)
class SparseLaw:
    """A law q over few token ids: q(ids[i]) = weights[i] / sum(weights), 0 elsewhere.

    Ids ascend; weights are positive float32 numbers, so that a message carries them without loss and both sides
    compute the same q from them. Raises ValueError for anything else.
    """

    ids: tuple[int, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.ids or len(self.ids) != len(self.weights):
            raise ValueError(f"a law needs as many weights as ids and at least one, got {len(self.ids)} ids")
        if self.ids[0] < 0 or any(low >= high for low, high in zip(self.ids, self.ids[1:], strict=False)):
            raise ValueError("the ids of a law must ascend from 0 or more")
        if not all(0.0 < weight < math.inf for weight in self.weights):
            raise ValueError("the weights of a law must be positive and finite")

    @property
    def probabilities(self) -> tuple[float, ...]:
        total = math.fsum(self.weights)
        return tuple(weight / total for weight in self.weights)


@dataclass(frozen=True, slots=True)
class LawRef:
    """A law that travels by itself: row `row` of bundle `bundle` of tensor plane `plane`, which is 1 or more.

    It stands for the law wherever tokens are cut, rebased and merged. Only the target at the other end of the plane can
    look at it.
    """

    plane: int
    bundle: int
    row: int


Law = SparseLaw | LawRef
Laws = tuple[Law, ...]
"""One law for each of some draft tokens; () = all of them are point masses (argmax, prompt lookup)."""


def point_mass(token: int) -> SparseLaw:
    """The law of a proposal token that was not drawn at all: argmax, n-gram, anything."""
    return SparseLaw((token,), (1.0,))


def check_laws(ids: Sequence[int], laws: Laws) -> None:
    """Raise ValueError unless `laws` can be those that `ids` were drawn from."""
    if laws and len(laws) != len(ids):
        raise ValueError(f"{len(ids)} draft tokens need as many laws or none, got {len(laws)}")
    for token, law in zip(ids, laws, strict=False):
        if isinstance(law, SparseLaw) and token not in law.ids:
            raise ValueError(f"draft token {token} cannot have been drawn from its law")


def known_laws(laws: Laws) -> tuple[SparseLaw, ...]:
    """The same laws where all of them are here; ValueError where one is elsewhere."""
    here = tuple(law for law in laws if isinstance(law, SparseLaw))
    if len(here) != len(laws):
        raise ValueError("a token cannot be weighed by a law that is elsewhere")
    return here


def within(law: SparseLaw, vocab_size: int) -> SparseLaw | None:
    """The law given that the token is below vocab_size; None when it cannot be."""
    count = bisect_left(law.ids, vocab_size)
    if count == len(law.ids):
        return law
    return SparseLaw(law.ids[:count], law.weights[:count]) if count else None


def drawable(ids: Sequence[int], laws: Iterable[Law | None], vocab_size: int) -> tuple[tuple[int, ...], Laws]:
    """As many of ids, with their laws, as can be used: up to the first whose law is missing (None) or does not contain
    it. Under a law that it was not drawn from a token would bend the output's distribution, so it is of no use, nor is
    what stands behind it. A law that is elsewhere is taken on trust until it is looked at."""
    good: list[Law] = []
    for token, law in zip(ids, laws, strict=False):
        if isinstance(law, SparseLaw):
            law = within(law, vocab_size)
            if law is None or token not in law.ids:
                break
        elif law is None:
            break
        good.append(law)
    return tuple(ids[: len(good)]), tuple(good)
