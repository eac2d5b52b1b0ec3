"""Tensor parallelism in the life of a service process: what rank 0's server says and does when a rank is lost."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import structlog

from ssd.config import EngineConfig
from ssd.errors import FieldError
from ssd.parallel.place import Place
from ssd.parallel.ranks import Alone, Ranks, Team, leave
from ssd.parallel.reasons import reason_of
from ssd.rpc.server import Server
from ssd.runtime.device import take_share

log = structlog.get_logger()


class RankLost(Exception):
    """The process ends because of a rank that is gone; the log says which."""


def run_ranked(engine: EngineConfig, serve: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Runs a service as the rank that this process is: `serve()` in rank 0, its calls in the others. The exit status;
    where there are several ranks the process ends here."""
    take_share(engine.gpu_share)  # before anything asks CUDA, and inherited by ranks that are started
    place = place_of(engine)
    if place is not None and place.rank > 0:
        # Only now: rank 0 is no follower.
        from ssd.parallel import follower

        leave(follower.serve(place))
    try:
        status = asyncio.run(serve())
    except RankLost:
        leave(1)
    if engine.tp > 1:
        leave(status)
    return status


def place_of(engine: EngineConfig) -> Place | None:
    """The place that torchrun's variables give this process; None where it starts other ranks itself, or has none.
    FieldError where they disagree with the settings."""
    place = Place.from_environment() if engine.tp > 1 else None
    if place is not None and place.size != engine.tp:
        raise FieldError("engine.tp", f"is {engine.tp}, but WORLD_SIZE is {place.size}: start as many ranks as tp says")
    return place


@contextlib.contextmanager
def team_of(engine: EngineConfig, server: Server) -> Iterator[Team]:
    """Who computes with this process, for as long as the service runs. Inside a running event loop. RankLost where the
    service fails because a rank is gone."""
    if engine.tp == 1:
        yield Alone()
        return
    loop = asyncio.get_running_loop()

    async def end() -> None:
        await server.set_serving(False)
        ranks.kill()
        server.end(1)

    def lost(reason: str) -> None:
        log.critical("a rank is lost, the process ends", reason=reason)
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: tasks.append(loop.create_task(end())))

    tasks: list[asyncio.Task[None]] = []  # or they may be collected before they have run
    ranks = Ranks(engine, place_of(engine), lost)
    try:
        yield ranks
    except RuntimeError as error:
        # While the model loads a lost rank may show as a failed operation first.
        if ranks.lost():
            raise RankLost(reason_of(error)) from error
        raise
    finally:
        ranks.close()
