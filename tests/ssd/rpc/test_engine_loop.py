"""The engine's thread: messages in order, wake-ups, bounded outboxes, death that is not hidden."""

import asyncio
import threading

import pytest

from protos.ssd.v1 import types_pb2
from ssd.rpc.engine_loop import EngineLoop, Outbox

LIMIT_S = 10.0


class Echo:
    """Answers every message in the next step; raises when told to."""

    def __init__(self):
        self.pending: list[tuple[int, str]] = []
        self.closed: list[int] = []
        self.wakes: list[float] = []
        self.seen_in_time: list[str] = []
        self.times: list[float] = []
        self.busy_until = 0  # so many messages have come
        self.seen_while_busy: list[str] = []
        self.in_step = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def handle(self, stream, request):
        self.pending.append((stream, request))

    def close_stream(self, stream):
        self.closed.append(stream)

    def begin(self, now):
        self.times.append(now)
        self.in_step.set()
        assert self.go_on.wait(LIMIT_S)

    def busy_for(self, now):
        return LIMIT_S if len(self.pending) < self.busy_until else 0.0

    def wait(self):
        self.seen_while_busy = [request for _, request in self.pending]

    def finish(self, now=None):
        self.times.append(now)
        answers: dict[int, list[str]] = {}
        for stream, request in self.pending:
            if request == "die":
                raise RuntimeError("told to")
            answers.setdefault(stream, []).append(request)
        self.pending.clear()
        if self.wakes:
            self.wakes.pop(0)
            self.seen_in_time = list(answers.get(1, []))
            answers[1] = ["woke"]
        return answers

    def wake_at(self, now):
        return self.wakes[0] if self.wakes else None

    def load(self):
        return types_pb2.EngineLoad(steps=1)


@pytest.fixture
async def running():
    engine, deaths = Echo(), asyncio.Queue()
    loop = EngineLoop(engine, deaths.put_nowait)
    loop.start()
    yield engine, loop, deaths
    engine.go_on.set()
    assert await loop.stop(LIMIT_S)


async def _get(outbox):
    return await asyncio.wait_for(outbox.get(), LIMIT_S)


async def test_messages_of_one_stream_are_answered_in_one_message_in_order(running):
    engine, loop, _ = running
    stream, outbox = loop.attach()
    engine.go_on.clear()
    loop.submit(stream, "a")
    await asyncio.to_thread(engine.in_step.wait, LIMIT_S)
    for word in "bcd":
        loop.submit(stream, word)
    engine.go_on.set()
    assert await _get(outbox) == ["a", "b", "c", "d"]


async def test_what_comes_during_a_step_is_there_at_its_end(running):
    engine, loop, _ = running
    stream, outbox = loop.attach()
    engine.go_on.clear()
    engine.wakes.append(0.0)
    loop.submit(stream, "wakes the engine")
    await asyncio.to_thread(engine.in_step.wait, LIMIT_S)
    loop.submit(stream, "late")
    engine.go_on.set()
    assert await _get(outbox) == ["woke"]
    assert engine.seen_in_time == ["wakes the engine", "late"]


async def test_messages_are_taken_in_while_the_device_is_busy(running):
    engine, loop, _ = running
    stream, outbox = loop.attach()
    engine.busy_until = 3
    for word in "abc":
        loop.submit(stream, word)
        await asyncio.to_thread(engine.in_step.wait, LIMIT_S)
    assert await _get(outbox) == ["a", "b", "c"]
    assert engine.seen_while_busy == ["a", "b", "c"]


async def test_an_engine_is_told_when_its_steps_begin_and_end(running):
    engine, loop, _ = running
    stream, outbox = loop.attach()
    for word in "ab":
        loop.submit(stream, word)
        await _get(outbox)
    assert len(engine.times) >= 4
    assert engine.times == sorted(engine.times)


async def test_streams_do_not_see_each_others_answers(running):
    _, loop, _ = running
    (one, box_one), (two, box_two) = loop.attach(), loop.attach()
    loop.submit(two, "for two")
    loop.submit(one, "for one")
    assert await _get(box_one) == ["for one"]
    assert await _get(box_two) == ["for two"]


async def test_a_busy_step_shows_while_it_runs(running):
    engine, loop, _ = running
    stream, outbox = loop.attach()
    engine.go_on.clear()
    loop.submit(stream, "a")
    await asyncio.to_thread(engine.in_step.wait, LIMIT_S)
    assert loop.busy_ms >= 1
    engine.go_on.set()
    await _get(outbox)
    assert loop.load.steps == 1


async def test_the_engine_is_woken_without_a_message(running):
    engine, loop, _ = running
    stream, outbox = loop.attach()
    engine.wakes.append(0.0)  # long past: at once
    loop.submit(stream, "a")
    assert "woke" in [word for _ in range(1) for word in await _get(outbox)]


async def test_a_detached_stream_is_closed_in_the_engine_and_gets_nothing_more(running):
    engine, loop, _ = running
    (one, box_one), (two, box_two) = loop.attach(), loop.attach()
    loop.detach(one)
    loop.submit(one, "late")
    loop.submit(two, "a")
    assert await _get(box_two) == ["a"]
    assert engine.closed == [one]
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(box_one.get(), 0.01)


async def test_a_dead_engine_is_reported_once_and_the_thread_ends():
    engine, deaths = Echo(), asyncio.Queue()
    loop = EngineLoop(engine, deaths.put_nowait)
    loop.start()
    stream, _ = loop.attach()
    loop.submit(stream, "die")
    error = await asyncio.wait_for(deaths.get(), LIMIT_S)
    assert isinstance(error, RuntimeError) and str(error) == "told to"
    assert await loop.stop(LIMIT_S)


async def test_an_outbox_nobody_reads_reports_the_overflow():
    outbox: Outbox[int] = Outbox(limit=2)
    for number in range(3):
        outbox.put(number)
    assert await outbox.get() is None
