"""A call that is packed and unpacked is the call that was made."""

import queue

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd.parallel.line import HEAD_WORDS, Line, receive
from ssd.parallel.wire import LENGTH, Call, Kind, SentTable, pack, unpack
from ssd.runtime.blocks import BlockPool, BlockTable
from ssd.runtime.draws import PlainDraw
from ssd.runtime.rows import BranchItem, RunRow

BLOCK = 8
NUMBERS = st.integers(0, 1 << 40)
SEEDS = st.integers(-(1 << 63), (1 << 63) - 1)
IDS = st.lists(NUMBERS, max_size=6).map(tuple)
DRAWS = st.none() | st.builds(PlainDraw, SEEDS, NUMBERS, st.floats(0.0, 1e308))


@st.composite
def calls(draw, most_blocks=12):
    blocks = st.lists(NUMBERS, max_size=most_blocks)
    tables = [SentTable(one, BLOCK) for one in draw(st.lists(blocks, min_size=1, max_size=4))]
    table = st.sampled_from(tables)
    rows = st.lists(st.builds(RunRow, IDS, NUMBERS, table, NUMBERS), max_size=5)
    items = st.lists(st.builds(BranchItem, NUMBERS, NUMBERS, table, NUMBERS, IDS, IDS), max_size=5)
    return Call(
        draw(st.sampled_from(Kind)),
        tuple(draw(rows)),
        tuple(draw(items)),
        tuple(draw(st.lists(DRAWS, max_size=6))),
        draw(NUMBERS),
        draw(IDS),
    )


def shared(call):
    """Which rows and branches have the same table."""
    tables = [row.table for row in call.rows] + [item.trunk for item in call.items]
    return [[one is other for other in tables] for one in tables]


@given(calls())
def test_unpacked_is_what_was_packed(call):
    found = unpack(pack(call), BLOCK)
    assert found == call
    assert shared(found) == shared(call)


@given(calls(), st.data())
def test_part_of_a_call_is_no_call(call, data):
    packed = pack(call)
    cut = packed[: data.draw(st.integers(1, len(packed) - 1))].clone()
    for length in (len(packed), len(cut)):
        cut[LENGTH] = length
        with pytest.raises(ValueError):
            unpack(cut, BLOCK)


@given(calls(), st.data())
def test_a_changed_word_makes_another_call_or_none(call, data):
    packed = pack(call)
    packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(-(1 << 63), (1 << 63) - 1))
    try:
        found = unpack(packed, BLOCK)
    except ValueError:
        return
    assert int(pack(found)[LENGTH]) <= len(packed)


@settings(max_examples=20)
@given(calls(), st.integers(0, 3 * HEAD_WORDS))
def test_a_call_of_any_length_crosses_the_line(call, wanted):
    call = Call(call.kind, call.rows, call.items, call.draws, call.number, tuple(range(wanted)))
    sent: list[torch.Tensor] = []
    line = Line(sent.append)
    with line.calling(call):
        assert line.busy_s > 0.0
    assert line.busy_s == 0.0
    assert receive(lambda tensor: tensor.copy_(sent.pop(0)), BLOCK) == call
    assert not sent


def test_a_sent_table_has_the_slots_of_the_one_it_was():
    pool = BlockPool(20, BLOCK)
    pool.take(3)
    table = BlockTable(pool)
    table.ensure(40)
    found = unpack(pack(Call(Kind.RUN, rows=(RunRow((1,), 0, table),))), BLOCK).rows[0].table
    assert found.slots(3, 29) == table.slots(3, 29)
    assert (found.capacity, found.fixed) == (table.capacity, 0)


def test_silence_on_the_line_is_filled():
    sent: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
    line = Line(sent.put)
    line.keep_alive(0.01)
    for _ in range(3):
        assert unpack(sent.get(timeout=30), BLOCK) == Call(Kind.NOOP)
    line.close()
