"""The life of an engine process: it can be stopped at any moment, and a failed start says why."""

import asyncio
import signal
import threading

import pytest

from protos.ssd.v1 import types_pb2
from ssd.rpc.engine_process import LoadingCancelled, LoadProgress, run_engine
from ssd.rpc.server import Server, StartupError

LIMIT_S = 10.0


class Idle:
    """An engine without work."""

    def handle(self, stream, request):
        pass

    def close_stream(self, stream):
        pass

    def step(self, now):
        return {}

    def wake_at(self, now):
        return None

    def load(self):
        return types_pb2.EngineLoad()


def ignore(engine, loop):
    pass


async def started() -> Server:
    server = Server("127.0.0.1:0", ["test.Service"])
    await server.start()
    return server


async def test_a_signal_while_the_model_loads_ends_the_loading_and_the_process_with_status_0():
    loading, cancelled = threading.Event(), threading.Event()

    def build(progress):
        loading.set()
        try:
            while True:
                progress(1, 2)
        except LoadingCancelled:
            cancelled.set()
            raise

    process = asyncio.create_task(run_engine(await started(), build, ignore, drain_s=1.0))
    assert await asyncio.to_thread(loading.wait, LIMIT_S)
    signal.raise_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process, LIMIT_S) == 0
    assert cancelled.wait(LIMIT_S)


async def test_what_a_person_can_mend_becomes_a_startup_error():
    def build(progress):
        raise ValueError("model: no such thing")

    with pytest.raises(StartupError, match="model: no such thing"):
        await run_engine(await started(), build, ignore, drain_s=1.0)


async def test_a_bug_while_loading_is_not_hidden():
    def build(progress):
        raise KeyError("bug")

    with pytest.raises(KeyError):
        await run_engine(await started(), build, ignore, drain_s=1.0)


async def test_ready_gets_the_engine_before_the_process_serves():
    engine, seen = Idle(), []

    def ready(made, loop):
        seen.append(made)
        signal.raise_signal(signal.SIGTERM)

    assert await asyncio.wait_for(run_engine(await started(), lambda progress: engine, ready, 1.0), LIMIT_S) == 0
    assert seen == [engine]


def test_progress_goes_on_until_it_is_cancelled():
    progress = LoadProgress()
    progress(1, 2)
    progress(0, 0)
    progress.cancel()
    with pytest.raises(LoadingCancelled):
        progress(2, 2)
