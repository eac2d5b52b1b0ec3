"""Blocks are never lost, never shared with the wrong content, and come back however a sequence ends."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ssd.runtime.blocks import BlockPool, BlockTable, OutOfBlocks

BLOCKS, SIZE = 12, 3


class PoolMachine(RuleBasedStateMachine):
    """Random lives of sequences over two token values, so that prefixes collide all the time. `content` stands for the
    KV: a slot holds the tokens that it was computed from."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(BLOCKS, SIZE)
        self.content = {}
        self.live = []

    def write(self, sequence):
        table, ids, computed = sequence["table"], sequence["ids"], sequence["computed"]
        assert computed >= table.fixed
        for position, slot in zip(range(computed, len(ids)), table.slots(computed, len(ids)), strict=True):
            self.content[slot] = tuple(ids[: position + 1])
        sequence["computed"] = len(ids)

    @rule(ids=st.lists(st.integers(0, 1), min_size=1, max_size=14))
    def open(self, ids):
        table = BlockTable(self.pool)
        shared = table.share(ids)
        assert shared < len(ids) and shared % SIZE == 0
        for position, slot in enumerate(table.slots(0, shared)):
            assert self.content[slot] == tuple(ids[: position + 1])
        try:
            table.ensure(len(ids))
        except OutOfBlocks:
            assert -(-len(ids) // SIZE) - len(table.blocks) > self.pool.free
            table.release()
            return
        sequence = {"table": table, "ids": list(ids), "computed": shared}
        self.write(sequence)
        self.live.append(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), ids=st.lists(st.integers(0, 1), min_size=1, max_size=5))
    def extend(self, data, ids):
        sequence = data.draw(st.sampled_from(self.live))
        try:
            sequence["table"].ensure(len(sequence["ids"]) + len(ids))
        except OutOfBlocks:
            return
        sequence["ids"] += ids
        self.write(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def publish(self, data):
        sequence = data.draw(st.sampled_from(self.live))
        self.pool.publish(sequence["table"], sequence["ids"], sequence["computed"])
        assert sequence["table"].fixed == sequence["computed"] // SIZE * SIZE

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def trim(self, data):
        sequence = data.draw(st.sampled_from(self.live))
        length = data.draw(st.integers(0, len(sequence["ids"])))
        kept = sequence["table"].trim(length)
        assert kept == length or (kept < length < kept + SIZE)
        sequence["ids"], sequence["computed"] = sequence["ids"][:kept], kept

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def close(self, data):
        sequence = data.draw(st.sampled_from(self.live))
        self.live = [other for other in self.live if other is not sequence]
        sequence["table"].release()

    @rule()
    def forget_prefixes(self):
        if not self.live:
            self.pool.clear_index()

    @invariant()
    def every_sequence_still_has_its_own_content(self):
        self.pool.check([sequence["table"] for sequence in self.live])
        for sequence in self.live:
            slots = sequence["table"].slots(0, sequence["computed"])
            assert [self.content[slot] for slot in slots] == [
                tuple(sequence["ids"][: i + 1]) for i in range(sequence["computed"])
            ]

    def teardown(self):
        for sequence in self.live:
            sequence["table"].release()
        self.pool.check([])
        assert self.pool.in_use == 0 and self.pool.free == BLOCKS


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def filled(pool, ids):
    table = BlockTable(pool)
    table.ensure(len(ids))
    pool.publish(table, ids, len(ids))
    return table


def test_a_known_prefix_leaves_at_least_one_token_to_compute():
    pool = BlockPool(8, 4)
    filled(pool, list(range(8))).release()
    assert len(pool.match(list(range(8)))) == 1
    assert len(pool.match(list(range(9)))) == 2
    assert pool.match([9, *range(1, 9)]) == []
    assert pool.match([0]) == pool.match([]) == []


def test_only_blocks_whose_kv_is_written_become_known():
    pool = BlockPool(8, 4)
    table = BlockTable(pool)
    table.ensure(12)
    pool.publish(table, list(range(12)), 7)
    assert pool.match(list(range(13))) == table.blocks[:1]
    pool.publish(table, list(range(12)), 12)
    assert pool.match(list(range(13))) == table.blocks


def test_cached_prefixes_are_given_up_last_and_from_their_ends():
    pool = BlockPool(6, 2)
    table = filled(pool, [1, 2, 3, 4, 5, 6])
    blocks = list(table.blocks)
    table.release()
    assert (pool.free, pool.cached, pool.in_use) == (6, 3, 0)
    taken = BlockTable(pool)
    taken.ensure(8)
    assert pool.match([1, 2, 3, 4, 5, 6, 7]) == blocks[:2]
    pool.check([taken])


def test_a_prefix_that_is_computed_again_joins_the_blocks_that_follow_it():
    pool = BlockPool(8, 2)
    first, second = filled(pool, [1, 2, 3, 4]), filled(pool, [1, 2, 3, 4, 5, 6])
    assert pool.match([1, 2, 3, 4, 5, 6, 7]) == [*first.blocks, second.blocks[2]]
    first.release()
    second.release()
    pool.check([])


def test_too_large_a_request_takes_nothing():
    pool = BlockPool(4, 2)
    table = BlockTable(pool)
    table.ensure(4)
    with pytest.raises(OutOfBlocks, match="3 KV blocks needed, 2 of 4 free"):
        table.ensure(10)
    assert pool.free == 2 and table.capacity == 4


def test_misuse_is_an_error_and_not_a_leak():
    pool = BlockPool(4, 2)
    table = BlockTable(pool)
    table.ensure(4)
    with pytest.raises(ValueError, match="outside a block table of 4 slots"):
        table.slots(3, 5)
    with pytest.raises(RuntimeError, match="empty block table"):
        table.share([1, 2, 3])
    blocks = list(table.blocks)
    table.release()
    with pytest.raises(RuntimeError, match="dropped more often than held"):
        pool.drop(blocks)
    with pytest.raises(RuntimeError, match="reference counts differ"):
        pool.take(1)
        pool.check([])
    with pytest.raises(ValueError, match="positive sizes"):
        BlockPool(0, 16)
