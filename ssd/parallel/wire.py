"""One call of a runner as one tensor of integers, and back.

Everything that a step reads is ids, positions and numbers of blocks; temperatures travel as their bits. A block table
that several rows or branches share is sent once, and shared again on the other side.

Words: length of all, kind, number, then how many tables, rows, branches, draws and wanted tokens there are, then these
in that order. Each list of varying length has its length before it.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import torch

from ssd.runtime.draws import PlainDraw
from ssd.runtime.rows import BranchItem, RunRow, Table

LENGTH = 0
"""The word that says how many there are."""


class Kind(IntEnum):
    """Which call."""

    NOOP = 0
    """Nothing: somebody is there."""
    RUN = 1
    RUN_BRANCHES = 2
    STEP = 3
    DRAFT = 4
    GROW = 5
    GROW_ON = 6
    LOGITS = 7
    """Logits of wanted tokens of the step before."""


@dataclass(frozen=True)
class Call:
    """Arguments of a call; `number` is its `count` or `steps`."""

    kind: Kind
    rows: Sequence[RunRow] = ()
    items: Sequence[BranchItem] = ()
    draws: Sequence[PlainDraw | None] = ()
    number: int = 0
    wanted: Sequence[int] = ()


@dataclass(frozen=True)
class SentTable:
    """A block table as far as a step reads it; see ssd.runtime.rows.Table."""

    blocks: list[int]
    block_size: int
    fixed: int = field(default=0, init=False)
    """Whoever owns the sequence has checked what may be written."""

    @property
    def capacity(self) -> int:
        return len(self.blocks) * self.block_size

    def slots(self, start: int, stop: int) -> list[int]:
        if not 0 <= start <= stop <= self.capacity:
            raise ValueError(f"positions {start}..{stop} are outside a block table of {self.capacity} slots")
        size = self.block_size
        return [self.blocks[position // size] * size + position % size for position in range(start, stop)]


def pack(call: Call) -> torch.Tensor:
    """int64 [length], the first word being its length."""
    tables: dict[int, Table] = {}
    for row in call.rows:
        tables.setdefault(id(row.table), row.table)
    for item in call.items:
        tables.setdefault(id(item.trunk), item.trunk)
    index = {key: number for number, key in enumerate(tables)}
    counts = (len(tables), len(call.rows), len(call.items), len(call.draws), len(call.wanted))
    words: list[int] = [0, call.kind, call.number, *counts]
    for table in tables.values():
        words.append(len(table.blocks))
        words += table.blocks
    for row in call.rows:
        words += (index[id(row.table)], row.start, row.logits, len(row.ids))
        words += row.ids
    for item in call.items:
        own, later = item.suffix_slots, item.later_slots
        words += (index[id(item.trunk)], item.token, item.position, item.prefix_len, len(own))
        words += own
        words.append(len(later))
        words += later
    for draw in call.draws:
        words += (0, 0, 0, 0) if draw is None else (1, draw.seed, draw.position, _bits(draw.temperature))
    words += call.wanted
    words[LENGTH] = len(words)
    return torch.from_numpy(np.array(words, dtype=np.int64))


def unpack(packed: torch.Tensor, block_size: int) -> Call:
    """The call in int64 [at least its length]; its tables have blocks of `block_size` tokens. ValueError where the
    words are no call: a rank that made another step than the others would have all of them wait."""
    length = int(packed[LENGTH])
    if not LENGTH < length <= len(packed):
        raise ValueError(f"a call of {length} words came in {len(packed)}")
    reader = _Reader(packed[:length].tolist())
    kind, number = Kind(reader.one()), reader.one()
    n_tables, n_rows, n_items, n_draws, n_wanted = (reader.one() for _ in range(5))
    tables = [SentTable(reader.counted(), block_size) for _ in range(n_tables)]
    rows = tuple(_rows(reader, tables, n_rows))
    items = tuple(_items(reader, tables, n_items))
    draws = tuple(_draw(*reader.some(4)) for _ in range(n_draws))
    wanted = tuple(reader.some(n_wanted))
    if reader.left:
        raise ValueError(f"a call has {reader.left} words too many")
    return Call(kind, rows, items, draws, number, wanted)


class _Reader:
    """Words one behind the other."""

    def __init__(self, words: list[int]) -> None:
        self._words = words
        self._next = LENGTH + 1

    @property
    def left(self) -> int:
        return len(self._words) - self._next

    def one(self) -> int:
        return self.some(1)[0]

    def some(self, count: int) -> list[int]:
        if not 0 <= count <= self.left:
            raise ValueError(f"a call has {self.left} words where {count} are to be read")
        self._next += count
        return self._words[self._next - count : self._next]

    def counted(self) -> list[int]:
        return self.some(self.one())


def _rows(reader: _Reader, tables: Sequence[SentTable], count: int) -> Iterator[RunRow]:
    for _ in range(count):
        table, start, logits = reader.some(3)
        yield RunRow(tuple(reader.counted()), start, _one_of(tables, table), logits)


def _items(reader: _Reader, tables: Sequence[SentTable], count: int) -> Iterator[BranchItem]:
    for _ in range(count):
        trunk, token, position, prefix_len = reader.some(4)
        own, later = tuple(reader.counted()), tuple(reader.counted())
        yield BranchItem(token, position, _one_of(tables, trunk), prefix_len, own, later)


def _one_of(tables: Sequence[SentTable], number: int) -> SentTable:
    if not 0 <= number < len(tables):
        raise ValueError(f"a call has {len(tables)} block tables, and names number {number}")
    return tables[number]


def _draw(there: int, seed: int, position: int, bits: int) -> PlainDraw | None:
    return PlainDraw(seed, position, _number(bits)) if there else None


def _bits(number: float) -> int:
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits


def _number(bits: int) -> float:
    number: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return number
