"""Laws as tensors, without loss: what is unpacked equals what was packed, so ids do not depend on the way taken."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from ssd.speculation.law import SparseLaw

BYTES_A_PAIR = 8  # an int32 id and a float32 weight
BYTES_A_LAW = 4  # an int32 offset
_PADDING = 64


def packed_bytes(laws: int, pairs: int) -> int:
    """At most so many bytes for that many laws with that many ids in all."""
    return BYTES_A_LAW * (laws + 1) + BYTES_A_PAIR * pairs + _PADDING


def pack(laws: Sequence[SparseLaw]) -> tuple[Tensor, Tensor, Tensor]:
    """offsets int32 [N + 1], ids int32 [M], weights float32 [M]: law i is what lies between offsets i and i + 1."""
    offsets = itertools.accumulate((len(law.ids) for law in laws), initial=0)
    return (
        torch.tensor(list(offsets), dtype=torch.int32),
        torch.tensor([token for law in laws for token in law.ids], dtype=torch.int32),
        torch.tensor([weight for law in laws for weight in law.weights], dtype=torch.float32),
    )


class PackedLaws:
    """The laws of one bundle as they came; one is only looked at when somebody asks for it."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Raises ValueError unless these can be the tensors of `pack`, on any device."""
        expected = [torch.int32, torch.int32, torch.float32]
        if [tensor.dtype for tensor in tensors] != expected or any(tensor.dim() != 1 for tensor in tensors):
            raise ValueError("laws are offsets, ids and weights")
        offsets, ids, weights = (tensor.cpu() for tensor in tensors)
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(ids) or len(ids) != len(weights):
            raise ValueError("offsets of laws begin at 0 and end with the ids, and there are as many weights")
        if bool((offsets.diff() <= 0).any()):
            raise ValueError("a law has at least one id")
        self._offsets, self._ids, self._weights = offsets, ids, weights

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def nbytes(self) -> int:
        return self._offsets.nbytes + self._ids.nbytes + self._weights.nbytes

    def law(self, row: int) -> SparseLaw | None:
        """One law; None where there is none, or its numbers make no sense."""
        if not 0 <= row < len(self):
            return None
        start, end = self._offsets[row : row + 2].tolist()
        try:
            return SparseLaw(tuple(self._ids[start:end].tolist()), tuple(self._weights[start:end].tolist()))
        except ValueError:
            return None
