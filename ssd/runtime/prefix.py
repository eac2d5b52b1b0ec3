"""Which blocks hold the KV of which token prefixes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from numpy import asarray, int64

ROOT = b""


@dataclass(frozen=True)
class Entry:
    """One full block: its tokens, and through `parent` (the digest of all blocks before) everything in front of
    them."""

    block: int
    parent: bytes
    tokens: tuple[int, ...]


class PrefixIndex:
    """Chains of full blocks. A digest finds an entry; its tokens and parent, compared in full, make it the right
    one."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.entries: dict[bytes, Entry] = {}
        self.digest_of: dict[int, bytes] = {}

    def __contains__(self, block: int) -> bool:
        return block in self.digest_of

    def match(self, ids: Sequence[int]) -> list[int]:
        """Blocks of the longest known prefix of `ids` that leaves at least one token to compute."""
        blocks = []
        most = (len(ids) - 1) // self.block_size
        for digest, parent, tokens in self.chain(ids, 0, most, ROOT):
            entry = self.entries.get(digest)
            if entry is None or entry.tokens != tokens or entry.parent != parent:
                break
            blocks.append(entry.block)
        return blocks

    def chain(
        self, ids: Sequence[int], first: int, last: int, parent: bytes
    ) -> Iterator[tuple[bytes, bytes, tuple[int, ...]]]:
        """(digest, parent's digest, tokens) of blocks first..last-1 of `ids`."""
        for index in range(first, last):
            tokens = tuple(ids[index * self.block_size : (index + 1) * self.block_size])
            digest = blake2b(asarray(tokens, int64).tobytes(), key=parent, digest_size=16).digest()
            yield digest, parent, tokens
            parent = digest

    def add(self, digest: bytes, entry: Entry) -> bool:
        """Registers the block unless another one has this content already; whether it did."""
        if digest in self.entries:
            return False
        self.entries[digest] = entry
        self.digest_of[entry.block] = digest
        return True

    def remove(self, block: int) -> None:
        """Forgets a registered block."""
        del self.entries[self.digest_of.pop(block)]
