"""Bundles that have arrived: bounded, in order, and honest about what is missing."""

import pytest

from ssd.speculation.law import SparseLaw
from ssd.tensor_plane.packing import PackedLaws, pack
from ssd.tensor_plane.store import MOST_MISSED, Absent, LawStore

LAW = SparseLaw((1, 4), (0.5, 0.25))


def laws(count: int = 1) -> PackedLaws:
    return PackedLaws(pack([LAW] * count))


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def store(clock):
    return LawStore(most_bytes=10 * laws(4).nbytes, most_bundles=3, clock=lambda: clock[0])


def test_laws_are_found_by_bundle_and_row(store):
    assert not store.put(1, laws(2))
    assert store.law(1, 1) == LAW
    assert store.law(1, 2) is Absent.GONE
    assert store.law(2, 0) is Absent.LATE


def test_whoever_asked_too_early_is_told(store):
    assert store.law(3, 0) is Absent.LATE
    assert not store.put(2, laws())
    assert store.put(3, laws())
    assert store.law(3, 0) == LAW


def test_a_bundle_that_was_skipped_is_gone_and_its_asker_is_told(store):
    assert store.law(2, 0) is Absent.LATE
    assert store.put(3, laws())
    assert store.law(2, 0) is Absent.GONE


def test_a_damaged_bundle_is_gone(store):
    assert store.law(1, 0) is Absent.LATE
    assert store.put(1, None)
    assert store.law(1, 0) is Absent.GONE


def test_the_oldest_make_room(store):
    for number in range(1, 5):
        store.put(number, laws())
    assert store.law(1, 0) is Absent.GONE
    assert [store.law(number, 0) for number in (2, 3, 4)] == [LAW] * 3
    store.put(5, laws(30))
    assert [store.law(number, 0) for number in (2, 3, 4)] == [Absent.GONE, LAW, LAW]
    store.put(6, laws(1000))
    assert store.law(6, 0) is Absent.GONE, "larger than everything that may be kept"


def test_doubled_and_old_numbers_change_nothing(store):
    store.put(2, laws(2))
    assert not store.put(2, laws(1))
    assert not store.put(1, laws(1))
    assert store.law(2, 1) == LAW and store.law(1, 0) is Absent.GONE


def test_what_is_asked_for_and_does_not_come_is_overdue(store, clock):
    assert not store.overdue(1.0)
    store.law(4, 0)
    clock[0] = 0.9
    store.law(4, 0)
    assert not store.overdue(1.0)
    clock[0] = 1.1
    assert store.overdue(1.0)
    store.put(4, laws())
    assert not store.overdue(1.0)


def test_made_up_numbers_fill_no_memory(store):
    for number in range(10 * MOST_MISSED):
        store.law(100 + number, 0)
    assert len(store._missed) == MOST_MISSED


def test_after_the_end_nothing_is_kept(store):
    store.put(1, laws())
    store.close()
    assert store.law(1, 0) is Absent.CLOSED
    assert not store.put(2, laws())
    assert store.law(2, 0) is Absent.CLOSED and not store.overdue(0.0)
