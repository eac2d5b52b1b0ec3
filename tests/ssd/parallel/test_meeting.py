"""Ranks come together whoever else connects, and who does not belong to them is told why."""

import contextlib
import json
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch.distributed as dist

from ssd.errors import FieldError
from ssd.parallel import follower, group, meeting
from ssd.parallel.group import join_store
from ssd.parallel.meeting import Meeting, attend
from ssd.parallel.place import LOOPBACK, Place

WITHIN_S = 30.0


@contextlib.contextmanager
def met(size, address=LOOPBACK):
    """A meeting that gathers: the store, where it listens, and what came of it."""
    store = dist.HashStore()
    gathering = Meeting(Place(0, size, 0, address), store, "the plan")
    port = json.loads(store.get("invitation"))["port"]
    over = threading.Event()

    def check():
        if over.is_set():
            raise FieldError("test", "is over")

    with ThreadPoolExecutor() as pool, contextlib.ExitStack() as stack:
        stack.callback(over.set)
        yield store, port, pool, pool.submit(gathering.gather, check)


def comes(pool, store, rank, size, address=LOOPBACK) -> Future:
    return pool.submit(attend, Place(rank, size, rank, address), store)


def told(gathered):
    """Rank 0's first sign of life."""
    for connected in gathered.result(WITHIN_S).values():
        connected.send(b"l")
    return sorted(gathered.result())


def closed(*futures):
    for future in futures:
        future.result(WITHIN_S)[1].close()


def hello(port, store, rank):
    """A rank that has come, as far as rank 0 sees it."""
    connected = socket.create_connection((LOOPBACK, port))
    connected.sendall(meeting._HELLO.pack(json.loads(store.get("invitation"))["token"], rank))
    return connected


def test_strangers_hold_up_nobody():
    with met(2) as (store, port, pool, gathered), contextlib.ExitStack() as strangers:
        for number in range(100):
            stranger = strangers.enter_context(socket.create_connection((LOOPBACK, port)))
            if number % 3 == 1:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            elif number % 3 == 2:
                stranger.sendall(bytes([number]))
        rank = comes(pool, store, 1, 2)
        assert told(gathered) == [1]
        assert rank.result(WITHIN_S)[0] == "the plan"
        closed(rank)


def test_an_early_rank_begins_nothing_before_all_are_there():
    with met(3) as (store, port, pool, gathered):
        early = comes(pool, store, 1, 3)
        with hello(port, store, 2):
            gathered.result(WITHIN_S)
            assert not early.done(), "operations of the group wait less patiently than ranks for each other"
            assert told(gathered) == [1, 2]
            closed(early)


def test_a_rank_that_ends_meanwhile_may_come_again():
    with met(3) as (store, port, pool, gathered):
        hello(port, store, 1).close()
        with hello(port, store, 2):
            time.sleep(2 * meeting._LOOK_EVERY_S)
            assert not gathered.done()
            again = comes(pool, store, 1, 3)
            assert told(gathered) == [1, 2]
            closed(again)


def test_a_second_process_of_one_rank_is_told_so():
    with met(3) as (store, _, pool, gathered):
        both = [comes(pool, store, 1, 3) for _ in range(2)]
        while not any(one.done() for one in both):
            time.sleep(0.01)
        refused = next(one for one in both if one.done())
        with pytest.raises(FieldError, match="RANK: rank 0 has turned rank 1 away"):
            refused.result()
        both.remove(refused)
        last = comes(pool, store, 2, 3)
        assert told(gathered) == [1, 2]
        closed(last, *both)


def test_who_has_another_size_or_version_is_told_so(monkeypatch):
    with met(2) as (store, _, _, _):
        with pytest.raises(FieldError, match="WORLD_SIZE: is 4 for rank 1, but 2 for rank 0"):
            attend(Place(1, 4, 1), store)
        monkeypatch.setattr(meeting, "versions", lambda: "ssd-serve 9")
        with pytest.raises(FieldError, match=r"version: this rank has ssd-serve 9, rank 0 ssd-serve .* with torch"):
            attend(Place(1, 2, 1), store)


def test_who_has_not_come_is_named(monkeypatch):
    monkeypatch.setattr(meeting, "MEET_WITHIN_S", 0.5)
    absent = pytest.raises(FieldError, match=r"engine\.tp: ranks \[2\] have not come within 0\.5 s")
    with met(3) as (store, port, _, gathered), hello(port, store, 1), absent:
        gathered.result(WITHIN_S)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_ranks_meet_over_ipv6():
    with met(2, "::1") as (store, _, pool, gathered):
        rank = comes(pool, store, 1, 2, "::1")
        assert told(gathered) == [1]
        closed(rank)


@pytest.mark.parametrize("address", ["::1", LOOPBACK])
def test_ranks_that_others_start_share_rank_0s_store(address):
    if ":" in address and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with group.listen_anywhere(0) as free:
        port = free.getsockname()[1]
    held = join_store(Place(0, 2, 0, address, port))
    held.set("who", "rank 0")
    assert join_store(Place(1, 2, 1, address, port)).get("who") == b"rank 0"


def test_a_taken_meeting_port_is_named():
    with group.listen_anywhere(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(FieldError, match=f"^MASTER_PORT: cannot listen on port {port}: address already in use$"):
            join_store(Place(0, 2, 0, LOOPBACK, port))


@pytest.mark.parametrize("address", [LOOPBACK, "no-such-host.invalid"])
def test_a_meeting_place_where_nobody_is_is_given_up(monkeypatch, address):
    monkeypatch.setattr(group, "MEET_WITHIN_S", 0.2)
    with pytest.raises(FieldError, match=f"^MASTER_ADDR: nobody listens at {address}:1 within 0.2 s: .*$"):
        join_store(Place(1, 2, 1, address, 1))


def test_a_rank_0_that_never_answers_is_given_up(monkeypatch):
    lost = threading.Event()
    monkeypatch.setattr(follower, "MEET_WITHIN_S", 0.05)
    monkeypatch.setattr(follower, "_lose", lambda place, loss: lost.set())
    with follower._meeting(Place(1, 2, 1)):
        assert lost.wait(WITHIN_S)
    lost.clear()
    monkeypatch.setattr(follower, "MEET_WITHIN_S", WITHIN_S)
    with follower._meeting(Place(1, 2, 1)):
        timers = [one for one in threading.enumerate() if isinstance(one, threading.Timer)]
    for timer in timers:
        timer.join(WITHIN_S)
    assert not lost.is_set()
