"""The law that one proposal token was drawn from, in the form in which it travels. Free of torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Laws", "SparseLaw", "check_laws", "point_mass"]


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


Laws = tuple[SparseLaw, ...]
"""One law for each of some draft tokens; () = all of them are point masses (argmax, prompt lookup)."""


def point_mass(token: int) -> SparseLaw:
    """The law of a proposal token that was not drawn at all: argmax, n-gram, anything."""
    return SparseLaw((token,), (1.0,))


def check_laws(ids: Sequence[int], laws: Laws) -> None:
    """Raise ValueError unless `laws` can be those that `ids` were drawn from."""
    if laws and len(laws) != len(ids):
        raise ValueError(f"{len(ids)} draft tokens need as many laws or none, got {len(laws)}")
    for token, law in zip(ids, laws, strict=False):
        if token not in law.ids:
            raise ValueError(f"draft token {token} cannot have been drawn from its law")
