"""Blocks of the paged KV cache: who holds which, which are free, and which free ones still hold a known prefix.

A block is in use (reference count > 0), cached (free, but its content is registered in the prefix index and may be
taken up again), or blank. Cached blocks are given out last, the least recently released first.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from ssd.runtime.prefix import ROOT, Entry, PrefixIndex


class OutOfBlocks(Exception):
    """The pool cannot give as many blocks as are needed; nothing was taken."""


class BlockPool:
    """All blocks of one cache. Not thread-safe: one step loop owns it."""

    def __init__(self, blocks: int, block_size: int) -> None:
        if blocks < 1 or block_size < 1:
            raise ValueError(f"block pool needs positive sizes, got {blocks} blocks of {block_size}")
        self.blocks = blocks
        self.block_size = block_size
        self.index = PrefixIndex(block_size)
        self._references = [0] * blocks
        self._blank = list(range(blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Blocks that can be given out now, cached ones included."""
        return len(self._blank) + len(self._cached)

    @property
    def in_use(self) -> int:
        """Blocks that somebody holds."""
        return self.blocks - self.free

    @property
    def cached(self) -> int:
        """Free blocks that still hold a known prefix."""
        return len(self._cached)

    def take(self, count: int) -> list[int]:
        """`count` blocks of unknown content, held once each; OutOfBlocks where there are fewer."""
        if count > self.free:
            raise OutOfBlocks(f"{count} KV blocks needed, {self.free} of {self.blocks} free")
        taken = []
        for _ in range(count):
            if self._blank:
                block = self._blank.pop()
            else:
                block, _ = self._cached.popitem(last=False)
                self.index.remove(block)
            self._references[block] = 1
            taken.append(block)
        return taken

    def hold(self, blocks: Iterable[int]) -> None:
        """One more reference to each of these blocks, which are in use or cached."""
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1

    def drop(self, blocks: Sequence[int]) -> None:
        """One reference less to each. Ends of prefixes are given out before their beginnings, so order matters: pass
        blocks in the order of their positions."""
        for block in reversed(blocks):
            if self._references[block] == 0:
                raise RuntimeError(f"KV block {block} is dropped more often than held")
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self.index:
                    self._cached[block] = None
                else:
                    self._blank.append(block)

    def match(self, ids: Sequence[int]) -> list[int]:
        """Blocks that hold the KV of a prefix of `ids`: full blocks only, at most (len(ids) - 1) // block_size of them,
        so that at least one token is left to compute. Nothing is held yet (see BlockTable.share)."""
        return self.index.match(ids)

    def publish(self, table: "BlockTable", ids: Sequence[int], computed_len: int) -> None:
        """Makes the table's full blocks known. `ids` are the sequence's committed tokens from index 0, and the KV of
        the first `computed_len` of them is written. A content that is known already stays with its first block."""
        full = min(computed_len, len(ids)) // self.block_size
        digests = table.digests
        parent = digests[-1] if digests else ROOT
        for digest, before, tokens in self.index.chain(ids, len(digests), full, parent):
            self.index.add(digest, Entry(table.blocks[len(digests)], before, tokens))
            digests.append(digest)

    def clear_index(self) -> None:
        """Forgets every prefix; cached blocks become blank."""
        self._blank.extend(self._cached)
        self._cached.clear()
        self.index = PrefixIndex(self.block_size)

    def check(self, tables: Iterable["BlockTable"] | None = None) -> None:
        """RuntimeError unless the books are consistent; with all live tables given, reference counts are compared
        too."""
        blank, cached = set(self._blank), set(self._cached)
        used = {block for block, count in enumerate(self._references) if count > 0}
        if len(blank) != len(self._blank) or sorted([*blank, *cached, *used]) != list(range(self.blocks)):
            raise RuntimeError("KV blocks are lost or in two states at once")
        if any(count < 0 for count in self._references):
            raise RuntimeError("a KV block has a negative reference count")
        known = {entry.block: digest for digest, entry in self.index.entries.items()}
        if known != self.index.digest_of or not cached <= known.keys() or blank & known.keys():
            raise RuntimeError("the prefix index and the blocks' states differ")
        if tables is not None:
            held = Counter(block for table in tables for block in table.blocks)
            if any(held[block] != count for block, count in enumerate(self._references)):
                raise RuntimeError("reference counts differ from what the block tables hold")


class BlockTable:
    """The blocks of one sequence: position p lives in slot blocks[p // block_size] * block_size + p % block_size."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.blocks: list[int] = []
        self.digests: list[bytes] = []
        """Prefix digests of the leading blocks that are shared or published: these must not be written any more."""

    @property
    def capacity(self) -> int:
        """Positions that have a slot."""
        return len(self.blocks) * self.pool.block_size

    @property
    def fixed(self) -> int:
        """Positions, counted from 0, whose KV others may be reading; writing starts here or later."""
        return len(self.digests) * self.pool.block_size

    def share(self, ids: Sequence[int]) -> int:
        """Takes up the known prefix of `ids` into this empty table; number of tokens that need not be computed."""
        if self.blocks:
            raise RuntimeError("a prefix can only be shared into an empty block table")
        found = self.pool.match(ids)
        self.pool.hold(found)
        self.blocks = found
        self.digests = [self.pool.index.digest_of[block] for block in found]
        return self.fixed

    def ensure(self, length: int) -> None:
        """Slots for positions 0..length-1; OutOfBlocks leaves the table as it was."""
        missing = -(-length // self.pool.block_size) - len(self.blocks)
        if missing > 0:
            self.blocks.extend(self.pool.take(missing))

    def slots(self, start: int, stop: int) -> list[int]:
        """Slots of positions start..stop-1; ValueError outside the table."""
        if not 0 <= start <= stop <= self.capacity:
            raise ValueError(f"positions {start}..{stop} are outside a block table of {self.capacity} slots")
        size = self.pool.block_size
        return [self.blocks[position // size] * size + position % size for position in range(start, stop)]

    def trim(self, length: int) -> int:
        """Gives back what lies past `length` and returns how many positions keep their KV: `length`, or less where the
        cut goes through a fixed block, which must not be written and is given back whole."""
        if length < self.fixed:
            length -= length % self.pool.block_size
        keep = -(-length // self.pool.block_size)
        self.pool.drop(self.blocks[keep:])
        del self.blocks[keep:]
        del self.digests[keep:]
        return length

    def release(self) -> None:
        """Gives everything back; the table can be used afresh."""
        self.trim(0)
