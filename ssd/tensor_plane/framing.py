"""Several tensors as one flat run of bytes, and the header that says how to take it apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import torch
from torch import Tensor

from ssd.tensor_plane.channel import MOST_BYTES, Broken

HEADER: Final = 32
"""Numbers (int64) in a header."""

_MAGIC: Final = 0x55D_71A_0001  # the last digits are the version
_FIXED: Final = 6
_DIMS: Final = 3
MOST_TENSORS: Final = (HEADER - _FIXED) // (2 + _DIMS)
_ALIGN: Final = 16  # every tensor begins where any element type may
_DTYPES: Final = (torch.uint8, torch.int32, torch.int64, torch.float32, torch.float16, torch.bfloat16)


class What(IntEnum):
    """What a header announces. `number` is the bundle, or what the other end is to know."""

    BUNDLE = 1
    BEAT = 2
    PROBE = 3  # bytes of no meaning, to be answered
    ANSWER = 4
    OPEN = 5  # measured; number = latency in nanoseconds, extra = bytes per second


@dataclass(frozen=True, slots=True)
class Header:
    """One message of a channel.

    size     bytes that follow on the carrier
    shapes   of the tensors in them; None where the description made no sense
    """

    what: What
    number: int = 0
    size: int = 0
    extra: int = 0
    shapes: tuple[tuple[torch.dtype, tuple[int, ...]], ...] | None = ()

    def tensor(self) -> Tensor:
        """As it travels: int64 [HEADER]."""
        numbers = [_MAGIC, self.what, self.number, self.size, self.extra, len(self.shapes or ())]
        for dtype, shape in self.shapes or ():
            numbers += [_DTYPES.index(dtype), len(shape), *shape, *(0,) * (_DIMS - len(shape))]
        return torch.tensor(numbers + [0] * (HEADER - len(numbers)), dtype=torch.int64)

    @classmethod
    def read(cls, tensor: Tensor) -> Header:
        """Raises Broken where the ends are out of step, so that nothing after it can be trusted either."""
        magic, what, number, size, extra, count, *rest = tensor.tolist()
        if magic != _MAGIC or what not in set(What) or not 0 <= size <= MOST_BYTES:
            raise Broken("the two ends are out of step: a header made no sense")
        return cls(What(what), number, size, extra, _shapes(rest, count, size))


def _shapes(numbers: Sequence[int], count: int, size: int) -> tuple[tuple[torch.dtype, tuple[int, ...]], ...] | None:
    if not 0 <= count <= MOST_TENSORS:
        return None
    shapes, end = [], 0
    for start in range(0, count * (2 + _DIMS), 2 + _DIMS):
        code, dims, *shape = numbers[start : start + 2 + _DIMS]
        if not (0 <= code < len(_DTYPES) and 0 <= dims <= _DIMS and all(0 <= n <= MOST_BYTES for n in shape[:dims])):
            return None
        shapes.append((_DTYPES[code], tuple(shape[:dims])))
        end += _room(*shapes[-1])
    return tuple(shapes) if end == size else None


def _room(dtype: torch.dtype, shape: Sequence[int]) -> int:
    """Bytes of one tensor, the padding behind it among them."""
    return -(-math.prod(shape) * dtype.itemsize // _ALIGN) * _ALIGN


def size_of(tensors: Sequence[Tensor]) -> int:
    """Bytes that `flat` makes of them."""
    return sum(_room(tensor.dtype, tensor.shape) for tensor in tensors)


def flat(number: int, tensors: Sequence[Tensor]) -> tuple[Header, Tensor]:
    """A bundle as it travels: its header and uint8 [size] on the tensors' own device.

    Raises ValueError for what no header can describe: too many tensors, dimensions or bytes, or another element type.
    """
    if not 0 < len(tensors) <= MOST_TENSORS or size_of(tensors) > MOST_BYTES:
        raise ValueError(f"a bundle has 1..{MOST_TENSORS} tensors of at most {MOST_BYTES} bytes in all")
    if any(tensor.dtype not in _DTYPES or tensor.dim() > _DIMS for tensor in tensors):
        raise ValueError(f"a bundle's tensors have at most {_DIMS} dimensions and one of {_DTYPES}")
    whole = torch.zeros(size_of(tensors), dtype=torch.uint8, device=tensors[0].device)
    start = 0
    for tensor in tensors:
        whole[start : start + tensor.nbytes].copy_(tensor.contiguous().view(-1).view(torch.uint8))
        start += _room(tensor.dtype, tensor.shape)
    shapes = tuple((tensor.dtype, tuple(tensor.shape)) for tensor in tensors)
    return Header(What.BUNDLE, number, len(whole), shapes=shapes), whole


def parts(header: Header, whole: Tensor) -> tuple[Tensor, ...]:
    """The tensors of a bundle, sharing memory with uint8 [size]; none where the header does not describe it."""
    if not header.shapes or len(whole) != header.size:
        return ()
    found, start = [], 0
    for dtype, shape in header.shapes:
        used = math.prod(shape) * dtype.itemsize
        found.append(whole[start : start + used].view(dtype).view(shape))
        start += _room(dtype, shape)
    return tuple(found)
