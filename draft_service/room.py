"""KV room: tables give way to trunks, and a trunk that still finds none is given up."""

from draft_service.sequence import DraftSequence
from draft_service.streams import Streams
from ssd.runtime.blocks import BlockPool, BlockTable, OutOfBlocks


class Room:
    """Finds blocks for what a step is about to write."""

    def __init__(self, live: Streams, pool: BlockPool) -> None:
        self._live = live
        self._pool = pool
        self._starved: list[DraftSequence] = []
        self.tables_dropped = 0

    def for_trunk(self, sequence: DraftSequence, length: int) -> bool:
        """Slots for `length` positions of a trunk. Tables are dropped for them, the youngest first, then trunks that
        nothing is done with at present; where that is not enough the sequence is starved."""
        while True:
            try:
                sequence.trunk.table.ensure(length)
                return True
            except OutOfBlocks:
                if trees := self._growing():
                    self._drop_table(max(trees, key=lambda other: other.round.ticket))
                elif idle := next((s for s in self._live if s.policy.idle and s.trunk.table.blocks), None):
                    idle.trunk.release()
                else:
                    self._starved.append(sequence)
                    return False

    def for_tree(self, sequence: DraftSequence) -> bool:
        """Scratch slots for a tree. It waits for other trees to finish; where there are none it is dropped."""
        tree = sequence.round.tree
        if tree is None:
            return False
        try:
            tree.reserve(self._pool)
            return True
        except OutOfBlocks:
            if not self._growing():
                self._drop_table(sequence)
            return False

    def take_starved(self) -> list[DraftSequence]:
        """Sequences that cannot go on, once."""
        starved, self._starved = self._starved, []
        return starved

    def tables_held(self) -> list[BlockTable]:
        """Every block table in use, of trunks and trees."""
        trees = [sequence.round.tree for sequence in self._live]
        scratches = [tree.scratch for tree in trees if tree is not None and tree.scratch is not None]
        return [sequence.trunk.table for sequence in self._live] + scratches

    def _growing(self) -> list[DraftSequence]:
        trees = ((sequence, sequence.round.tree) for sequence in self._live)
        return [sequence for sequence, tree in trees if tree is not None and tree.scratch is not None]

    def _drop_table(self, sequence: DraftSequence) -> None:
        sequence.round.give_up_table()
        self.tables_dropped += 1
