"""The ranks of one model as rank 0 sees them: it starts those of its machine, watches all, and ends with them.

When a rank dies or falls silent nothing can be computed any more. Rank 0 then tells its health first, kills the ranks
that it started, and ends with a status other than 0: in order where that goes on, and after END_WITHIN_S in any case.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn, Protocol

import structlog
import torch.distributed as dist

from ssd.config import EngineConfig
from ssd.errors import FieldError
from ssd.layers.shard import Shard
from ssd.parallel import preflight
from ssd.parallel.group import Group, form, join_store, loopback_store
from ssd.parallel.line import Line
from ssd.parallel.meeting import Meeting
from ssd.parallel.place import LOOPBACK, Place
from ssd.parallel.plan import Plan
from ssd.parallel.pulse import Loss, Pulse
from ssd.parallel.reasons import reason_of
from ssd.parallel.runners import LeadingRunner
from ssd.runtime.device import resolve_device, resolve_dtype
from ssd.runtime.runner import ModelRunner, Runner

END_WITHIN_S = 3.0
"""From the moment that a loss is seen until this process is gone, stuck threads or not."""
_LEAVE_WITHIN_S = 2.0
_SEEN_WITHIN_S = 1.0
FOLLOWER = "ssd.parallel.follower"

log = structlog.get_logger()


class Team(Protocol):
    """Who computes a model together with this process."""

    def join(self, plan: Plan) -> Shard:
        """All come together for this plan; this process's part. FieldError or ModelError (ValueErrors) where that
        cannot be."""
        ...

    def all_loaded(self) -> None:
        """Waits until every rank has its weights."""
        ...

    def lead(self, runner: ModelRunner) -> Runner:
        """The runner that all of them make up."""
        ...


class Alone:
    """A model in this process alone."""

    def join(self, plan: Plan) -> Shard:
        return Shard()

    def all_loaded(self) -> None:
        pass

    def lead(self, runner: ModelRunner) -> Runner:
        return runner


ALONE = Alone()


class Ranks:
    """Rank 0's side of a model over `engine.tp` ranks. Use `close` whatever has happened."""

    def __init__(self, engine: EngineConfig, place: Place | None, on_loss: Callable[[str], None]) -> None:
        """place: where others start the ranks; None = they are started here. on_loss: called once, on another thread,
        with the reason."""
        self._engine = engine
        self._place = place
        self._on_loss = on_loss
        self._children: list[subprocess.Popen[bytes]] = []
        self._group: Group | None = None
        self._line: Line | None = None
        self._lost = threading.Event()
        self._pulse = Pulse(engine.rank_silence_s, self._lose, check=self._hung)

    @property
    def processes(self) -> list[int]:
        """Process ids of the ranks that were started here."""
        return [child.pid for child in self._children]

    def join(self, plan: Plan) -> Shard:
        plan.check()
        if self._place is None:
            preflight.require(self._engine)
        place, store = self._meeting_place()
        meeting = Meeting(place, store, plan.to_json())
        for rank, connected in meeting.gather(self._check_children).items():
            self._pulse.add(rank, connected)
        self._pulse.start()
        try:
            self._group = join_group(plan, place, store)
        except RuntimeError as error:
            raise FieldError("engine.tp", f"the ranks cannot form a group: {reason_of(error)}") from error
        log.info("ranks together", ranks=place.size, processes=self.processes)
        return self._group.shard

    def all_loaded(self) -> None:
        if self._group is not None:
            self._group.all_loaded()

    def lead(self, runner: ModelRunner) -> Runner:
        if self._group is None:
            raise RuntimeError("there is no group to lead")
        self._line = Line(self._group.broadcast)
        self._line.keep_alive(self._engine.collective_timeout_s / 3)
        self._pulse.serve()
        return LeadingRunner(runner, self._line)

    def lost(self) -> bool:
        """Whether a rank is gone. An operation of the group fails at once, and so may do so before the pulse sees it:
        ask after such a failure, and the pulse is given time."""
        return self._lost.wait(_SEEN_WITHIN_S)

    def kill(self) -> None:
        """Ends the ranks that were started here, at once."""
        for child in self._children:
            if child.poll() is None:
                child.kill()

    def close(self) -> None:
        """Lets the other ranks go, and ends those of this machine that do not."""
        if self._line is not None:
            self._line.close()
        self._pulse.leave()
        deadline = time.monotonic() + (0.0 if self._lost.is_set() else _LEAVE_WITHIN_S)
        for child in self._children:
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
        for child in self._children:
            child.wait(_LEAVE_WITHIN_S)
            if child.stdin is not None:
                child.stdin.close()
        self._pulse.stop()

    def _meeting_place(self) -> tuple[Place, dist.Store]:
        if self._place is not None:
            return self._place, join_store(self._place)
        store = loopback_store(self._engine.tp)
        place = Place(0, self._engine.tp, 0, LOOPBACK, store.port, os.getpid())
        self._start(place)
        return place, store

    def _start(self, place: Place) -> None:
        for rank in range(1, place.size):
            own = Place(rank, place.size, rank, place.address, place.port, place.parent)
            self._children.append(
                subprocess.Popen(
                    (sys.executable, "-m", FOLLOWER),
                    # Closes with this process, also before there is a pulse.
                    stdin=subprocess.PIPE,
                    env=os.environ | own.environment,
                    # A terminal's Ctrl-C is for rank 0 alone, which lets the others go in order.
                    start_new_session=True,
                )
            )

    def _check_children(self) -> None:
        for rank, child in enumerate(self._children, start=1):
            if (status := child.poll()) is not None:
                raise FieldError("engine.tp", f"rank {rank} ended with status {status} while starting; see its log")

    def _hung(self) -> Loss | None:
        limit = self._engine.collective_timeout_s
        if self._line is not None and self._line.busy_s > limit:
            return Loss(0, f"a step of all ranks has been under way for more than {limit:g} s")
        return None

    def _lose(self, loss: Loss) -> None:
        self._lost.set()
        threading.Thread(target=_end_in_any_case, args=(self.kill,), name="end", daemon=True).start()
        self._on_loss(loss.reason)


def join_group(plan: Plan, place: Place, store: dist.Store) -> Group:
    """The group that computes a plan; the same in every rank."""
    engine = plan.engine
    device = resolve_device(plan.device(place.local_rank))
    return form(
        place,
        store,
        device,
        resolve_dtype(engine.dtype, device),
        all_reduce=engine.all_reduce,
        deterministic=plan.deterministic,
        timeout_s=engine.collective_timeout_s,
    )


def leave(status: int) -> NoReturn:
    """Ends this process without the teardown of process groups, which may wait for ranks that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _end_in_any_case(kill: Callable[[], None]) -> None:
    time.sleep(END_WITHIN_S)
    kill()
    leave(1)
