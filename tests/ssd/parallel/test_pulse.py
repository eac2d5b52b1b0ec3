"""A rank that ends is missed at once, one that falls silent after the limit, and one that leaves not at all."""

import queue
import socket
import time

from ssd.parallel.pulse import LOADING, SERVING, Loss, Pulse

WITHIN_S = 30.0
SILENCE_S = 0.4


def pulse_to(rank, silence_s=SILENCE_S, check=lambda: None):
    """A running pulse, the other end of its socket, and what it reports."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(WITHIN_S)
    said = queue.SimpleQueue()
    pulse = Pulse(silence_s, said.put, lambda: said.put("left"), check)
    pulse.add(rank, ours)
    pulse.start()
    return pulse, theirs, said


def test_the_end_of_a_process_is_seen_at_once():
    pulse, theirs, said = pulse_to(3, silence_s=60.0)
    theirs.close()
    loss = said.get(timeout=WITHIN_S)
    assert loss.rank == 3 and not loss.silent
    assert "rank 3" in loss.reason
    pulse.stop()


def test_silence_is_seen_after_the_limit_and_only_in_who_serves():
    pulse, theirs, said = pulse_to(1)
    theirs.send(LOADING)
    began = time.monotonic()
    while time.monotonic() < began + 3 * SILENCE_S:
        assert theirs.recv(64)
    assert said.empty(), "loading may take long"
    theirs.send(SERVING)
    assert said.get(timeout=WITHIN_S) == Loss(1, "rank 1 has given no sign of life for 0.4 s", silent=True)
    pulse.stop()


def test_who_serves_says_so():
    pulse, theirs, _ = pulse_to(1)
    assert theirs.recv(1) == LOADING
    pulse.serve()
    while theirs.recv(64)[-1:] != SERVING:
        continue
    pulse.stop()


def test_leaving_is_no_loss():
    one, another = socket.socketpair()
    said, heard = queue.SimpleQueue(), queue.SimpleQueue()
    leaving, left = Pulse(60.0, said.put), Pulse(60.0, heard.put, lambda: heard.put("left"))
    leaving.add(1, one)
    left.add(0, another)
    leaving.start()
    left.start()
    leaving.leave()
    assert heard.get(timeout=WITHIN_S) == "left"
    leaving.stop()
    left.stop()
    assert said.empty() and heard.empty()


def test_what_no_socket_shows_is_asked_for():
    hung = Loss(0, "a step hangs")
    pulse, theirs, said = pulse_to(1, check=lambda: hung)
    assert said.get(timeout=WITHIN_S) == hung
    pulse.stop()
    theirs.close()
