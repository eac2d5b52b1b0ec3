"""A rank that is lost while the model loads ends the process in order, whoever sees it first."""

import asyncio
import sys
import threading

import pytest

from ssd.config import EngineConfig
from ssd.parallel import ranks, serving
from ssd.parallel.pulse import Loss
from ssd.parallel.serving import RankLost, run_ranked, team_of
from ssd.rpc.server import Server


@pytest.fixture
def lived(monkeypatch):
    """Nothing ends this process in any case."""
    monkeypatch.setattr(ranks, "_end_in_any_case", lambda kill: None)


async def fails(error, loss=None):
    server = Server("127.0.0.1:0", [])
    with team_of(EngineConfig(tp=2), server) as team:
        if loss is not None:
            threading.Timer(0.1, team._lose, (loss,)).start()
        raise error


def test_an_operation_that_fails_for_a_lost_rank_is_no_error_of_its_own(lived):
    with pytest.raises(RankLost, match=r"^Connection closed by peer$"):
        asyncio.run(fails(RuntimeError("Connection closed by peer\nframe #0"), Loss(1, "rank 1 has ended")))


def test_any_other_error_is_itself(lived):
    with pytest.raises(RuntimeError, match="out of memory"):
        asyncio.run(fails(RuntimeError("out of memory")))


def test_the_process_ends_with_status_1(lived, monkeypatch):
    monkeypatch.setattr(serving, "leave", sys.exit)
    loss = Loss(1, "rank 1 has ended")
    with pytest.raises(SystemExit, match="^1$"):
        run_ranked(EngineConfig(), lambda: fails(RuntimeError("closed"), loss))
