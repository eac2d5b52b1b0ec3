"""A rank other than 0: it loads its part of the model and makes rank 0's calls until that leaves or is lost."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

import structlog

from ssd.errors import FieldError
from ssd.parallel.group import MEET_WITHIN_S, join_store
from ssd.parallel.line import receive
from ssd.parallel.meeting import attend
from ssd.parallel.place import Place
from ssd.parallel.plan import Plan
from ssd.parallel.pulse import Loss, Pulse
from ssd.parallel.ranks import join_group, leave
from ssd.parallel.reasons import reason_of
from ssd.parallel.runners import follow
from ssd.runtime.assembly import make_runner
from ssd.runtime.device import set_threads
from ssd.telemetry import logging

LOST, BAD_INPUT = 1, 2
"""Exit statuses: the group is lost; this rank cannot do its part."""

log = structlog.get_logger()


def main() -> int:
    """For `python -m`: the place is in the environment."""
    place = Place.from_environment()
    if place is None:
        raise FieldError("RANK", "is not set: ranks are started by rank 0, or by torchrun")
    if place.parent:
        # Who asks all processes of a service to end asks rank 0 too, and that lets the others go when it has drained.
        for asked in (signal.SIGTERM, signal.SIGINT):
            signal.signal(asked, signal.SIG_IGN)
        threading.Thread(target=_end_with_stdin, name="lifeline", daemon=True).start()
    return serve(place)


def serve(place: Place) -> int:
    """Runs this rank; returns the exit status, or ends the process when rank 0 leaves or is lost."""
    logging.configure(service=f"rank{place.rank}")
    try:
        with _meeting(place):
            store = join_store(place)
            text, connected = attend(place, store)
            plan = Plan.from_json(text)
            pulse = Pulse(plan.engine.rank_silence_s, lambda loss: _lose(place, loss), lambda: leave(0))
            pulse.add(0, connected)
            pulse.start()
        set_threads(plan.engine.threads, plan.engine.device, plan.engine.tp)
        group = join_group(plan, place, store)
        loaded = plan.load(group.shard, place.local_rank)
        group.all_loaded()
        runner, _ = make_runner(loaded, plan.engine, plan.demand, prepare=True)
    except (ValueError, OSError, RuntimeError) as error:
        log.error("the rank cannot start", rank=place.rank, error=reason_of(error))
        return BAD_INPUT
    pulse.serve()
    log.info("following", rank=place.rank, device=str(loaded.device))
    try:
        follow(runner, lambda: receive(group.broadcast, plan.engine.block_size))
    except BaseException as error:  # the process ends, and all ranks with it
        log.exception("the group is lost", rank=place.rank, error=str(error))
        return LOST


@contextlib.contextmanager
def _meeting(place: Place) -> Iterator[None]:
    """A block in which this rank meets the others. Until there is a pulse nothing else ends the wait for a rank 0 that
    stands still: a store that takes a connection and never answers is waited for without a limit."""
    limit_s = 2 * MEET_WITHIN_S
    loss = Loss(0, f"rank 0 has not met this rank within {limit_s:g} s", silent=True)
    timer = threading.Timer(limit_s, _lose, (place, loss))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _lose(place: Place, loss: Loss) -> None:
    log.error("rank 0 is lost", rank=place.rank, reason=loss.reason)
    if loss.silent and place.parent and os.getppid() == place.parent:
        # It holds the port and a GPU's memory, and whoever restarts it sees nothing of a process that stands still.
        os.kill(place.parent, signal.SIGKILL)
    leave(LOST)


def _end_with_stdin() -> None:
    """Rank 0 holds the other end: the kernel closes it however that process ends."""
    while os.read(sys.stdin.fileno(), 4096):
        continue
    leave(LOST)


if __name__ == "__main__":
    leave(main())
