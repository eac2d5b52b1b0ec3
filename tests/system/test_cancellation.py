"""Clients that leave at any moment, under load: everything they held is given back."""

import asyncio
import random
from collections.abc import Iterator

import grpc
import psutil
import pytest

from protos.ssd.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from ssd.rpc.options import CHANNEL_OPTIONS
from tests.system import peers
from tests.system.services import System, Toys, running_system

LEAVERS = 200
AT_ONCE = 16
STAYERS = 4
MOST_GROWTH_BYTES = 24 << 20
MODES = (types_pb2.MODE_AR, types_pb2.MODE_SD, types_pb2.MODE_SSD)
EXPECTED = {grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}


@pytest.fixture(scope="module")
def system(toys: Toys, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with running_system(toys, tmp_path_factory.mktemp("cancellation"), max_live=AT_ONCE + STAYERS) as running:
        yield running


def request(rng: random.Random, tokens: int, mode: types_pb2.Mode) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=[rng.randrange(256) for _ in range(rng.randrange(1, 200))]),
        sampling=types_pb2.SamplingParameters(temperature=rng.choice([0.0, 0.8]), seed=5),
        stop=inference_pb2.StopParameters(max_tokens=tokens, ignore_eos=True),
        speculation=inference_pb2.SpeculationParameters(mode=mode),
    )


async def leave(stub: inference_pb2_grpc.InferenceServiceStub, rng: random.Random) -> None:
    """Begin a generation and be gone before its end: by cancelling after some messages or some time, or by deadline."""
    by_deadline = rng.random() < 0.5
    timeout = rng.choice([0.001, 0.02, 0.1, 0.4]) if by_deadline else 60.0
    call = stub.GenerateStream(request(rng, 800, rng.choice(MODES)), timeout=timeout)
    messages = rng.choice([0, 1, 2, 10, 40])
    try:
        if by_deadline:
            async for _ in call:
                pass
        elif messages == 0:
            await asyncio.sleep(rng.random() * 0.05)
        else:
            async for _ in call:
                messages -= 1
                if messages == 0:
                    break
    except grpc.aio.AioRpcError as error:
        assert error.code() in EXPECTED, error
    finally:
        call.cancel()


async def leavers(address: str, count: int, seed: int) -> None:
    """`count` clients that leave, AT_ONCE at a time, while STAYERS get their whole answers."""
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        rng = random.Random(seed)
        places = asyncio.Semaphore(AT_ONCE - 1)

        async def one(number: int) -> None:
            async with places:
                await leave(stub, random.Random(seed * 1000 + number))

        async def stay(mode: types_pb2.Mode) -> list[int]:
            return list((await stub.Generate(request(random.Random(1), 120, mode), timeout=100)).token_ids)

        stayers = [asyncio.create_task(stay(rng.choice(MODES))) for _ in range(STAYERS)]
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(one(number))
        answers = await asyncio.gather(*stayers)
        assert all(len(answer) == 120 and answer == answers[0] for answer in answers)


def footprint(system: System) -> dict[str, tuple[int, int, int]]:
    """Threads, open files and resident bytes of each service."""
    found = {}
    for name in system.specs:
        process = psutil.Process(system.supervisor[name].process.pid)
        found[name] = (process.num_threads(), process.num_fds(), process.memory_info().rss)
    return found


@pytest.mark.timeout(240)
def test_two_hundred_clients_that_leave_take_nothing_along(system: System) -> None:
    before = peers.held(system)
    assert before == 0
    asyncio.run(leavers(system.address, LEAVERS // 2, seed=1))  # warms every path and every buffer
    peers.eventually(lambda: peers.held(system) == before, "KV blocks back after the warm-up")
    warm = footprint(system)
    asyncio.run(leavers(system.address, LEAVERS, seed=2))
    peers.eventually(lambda: peers.held(system) == before, "KV blocks back")
    peers.eventually(lambda: peers.router_load(system).running == 0, "no request is live")
    peers.eventually(
        lambda: all(now[1] <= then[1] + 1 for now, then in zip(footprint(system).values(), warm.values(), strict=True)),
        "connections are closed",
    )
    for name, (threads, _, resident) in footprint(system).items():
        assert threads <= warm[name][0] + 1, f"{name} has more threads than before"
        assert resident <= warm[name][2] + MOST_GROWTH_BYTES, f"{name} grew"
