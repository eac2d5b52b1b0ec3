"""Company changes nothing: several sequences get what each gets alone, in fewer passes."""

import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protos.ssd.v1 import draft_pb2, types_pb2
from ssd.models.loader import LoadedModel
from tests.draft_service.harness import Reference, Request, Wire, make_engine, serve_truth

REQUESTS = (
    Request((1, 2, 3), {"temperature": 1.0}, k=4, fan_out=2),
    Request(tuple(range(30, 60)), {"temperature": 0.7, "frequency_penalty": 1.0}, k=2, fan_out=3),
    Request((1, 2, 3, 4, 5, 6, 7, 8, 9), {"temperature": 0.0, "repetition_penalty": 1.4}, k=6, fan_out=1),
    Request((9, 9, 9), {"temperature": 1.3, "top_k": 10}, k=3, mode=types_pb2.MODE_SD),
)


def answers(wire: Wire, sequence: int) -> tuple[list, list]:
    tables = [table for table in wire.table_messages if table.sequence == sequence]
    proposals = [proposal for proposal in wire.proposals if proposal.sequence == sequence]
    return tables, proposals


def test_a_batch_gets_what_each_sequence_gets_alone(loaded: LoadedModel) -> None:
    together = Wire(make_engine(loaded))
    alone_steps = 0
    for number, request in enumerate(REQUESTS):
        together.open(request, number, need=number % 2 == 1)
    together.run()
    for number, request in enumerate(REQUESTS):
        alone = Wire(make_engine(loaded))
        alone.open(request, number, need=number % 2 == 1)
        alone.run()
        assert answers(together, number) == answers(alone, number)
        alone_steps += alone.engine.load().steps
    assert together.engine.load().steps < 0.7 * alone_steps


def test_tables_that_are_due_in_one_step_travel_in_one_message(loaded: LoadedModel) -> None:
    wire = Wire(make_engine(loaded))
    for number in range(5):
        wire.open(Request((number, 1, 2), k=2), number)
    while not wire.tables:
        wire.step()
    assert {table.sequence for table in wire.table_messages} == set(range(5))


def test_a_token_budget_only_spreads_the_work(loaded: LoadedModel) -> None:
    wide, narrow = Wire(make_engine(loaded)), Wire(make_engine(loaded, token_budget=12))
    for wire in (wide, narrow):
        for number, request in enumerate(REQUESTS):
            wire.open(request, number, need=True)
        wire.run()
    for number in range(len(REQUESTS)):
        assert answers(wide, number) == answers(narrow, number)
    assert narrow.engine.load().steps > wide.engine.load().steps


def test_requests_one_after_another_share_prefixes_and_stay_right(loaded: LoadedModel, reference: Reference) -> None:
    wire = Wire(make_engine(loaded, blocks=40))
    for round_number in range(3):
        request = Request(tuple(range(40 + round_number)), {"temperature": 1.0, "seed": round_number}, k=3, fan_out=1)
        tally = serve_truth(wire, request, reference.continuation(request, request.prompt, 20))
        assert tally.hits == tally.rounds and tally.accepted == tally.proposed
        wire.engine.close_stream(wire.stream)
        wire.tables.clear()
        assert wire.engine.load().kv_blocks_used == 0


def any_rule(rng: random.Random) -> types_pb2.FanOut:
    return types_pb2.FanOut(
        rule=rng.randrange(1, 5),
        fan_out=rng.randint(1, 4),
        budget=rng.randint(1, 20),
        after_hit=[rng.randrange(4) for _ in range(rng.randint(1, 7))],
        after_miss=[rng.randrange(4) for _ in range(rng.choice([0, 4]))],
    )


def scrambled(rng: random.Random, truth: dict[int, tuple[int, ...]]) -> draft_pb2.DraftServiceServeRequest:
    """One message as a careless network or a confused peer might deliver it."""
    request = draft_pb2.DraftServiceServeRequest()
    for _ in range(rng.randint(1, 3)):
        number = rng.randrange(5)
        text = truth[number]
        at = rng.randrange(3, len(text) - 6)
        match rng.randrange(7):
            case 0 | 1:
                prompt = Request(
                    text[:3],
                    {"temperature": rng.choice([0.0, 1.0]), "top_k": rng.choice([0, 5])},
                    {"max_tokens": rng.choice([1, 8, 60]), "stop_ids": rng.sample(range(320), 20), "min_tokens": 1},
                    k=rng.randint(1, 6),
                    fan_out=any_rule(rng),
                    mode=rng.choice([types_pb2.MODE_SD, types_pb2.MODE_SSD, types_pb2.MODE_AUTO]),
                    more={
                        "verification": rng.randrange(3),
                        "saguaro_c": rng.choice([0.0, 0.3, 1.0]),
                        "part": rng.randrange(3),
                        "parts": rng.choice([0, 3, 4]),
                    },
                )
                request.opens.append(prompt.message(number, text[3:at], need=rng.random() < 0.5))
            case 2 | 3 | 4:
                ids = list(text[at : at + rng.randint(0, 5)])
                if ids and rng.random() < 0.1:
                    ids[-1] = rng.choice([0, 319, 320, 1 << 31])
                end = at + len(ids)
                advance = draft_pb2.Advance(
                    sequence=number,
                    base_len=at,
                    ids=ids,
                    need_proposal=rng.random() < 0.5,
                    next_depth=rng.randrange(9),
                    next_source=rng.randrange(4),
                    parts=rng.choice([0, 0, 0, 1, 2]),
                )
                if rng.random() < 0.3:
                    advance.in_flight.extend(
                        text[end : end + 3] if rng.random() < 0.5 else [1, 2, 999][: rng.randint(1, 3)]
                    )
                if rng.random() < 0.3:
                    advance.plan.CopyFrom(
                        draft_pb2.DraftPlan(
                            mode=rng.randrange(5),
                            k=rng.randrange(9),
                            depth=rng.choice([0, 1, 3, 8, 40]),
                            fan_out=[rng.randrange(4) for _ in range(rng.randrange(6))],
                        )
                    )
                request.advances.append(advance)
            case 5:
                ids = text[:at] if rng.random() < 0.8 else text[at:]
                request.resyncs.append(draft_pb2.Resync(sequence=number, ids=ids, need_proposal=rng.random() < 0.5))
            case _:
                if rng.random() < 0.3:
                    request.closes.append(number)
    return request


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32), blocks=st.sampled_from([3, 8, 20, 200]), budget=st.sampled_from([4, 16, 512]))
def test_no_message_whatever_breaks_the_engine_or_loses_a_block(
    loaded: LoadedModel, seed: int, blocks: int, budget: int
) -> None:
    rng = random.Random(seed)
    engine = make_engine(
        loaded, blocks=blocks, token_budget=budget, max_sequences=rng.choice([2, 8]), max_context=rng.choice([0, 24])
    )
    truth = {number: tuple(rng.randrange(320) for _ in range(40)) for number in range(5)}
    wires = [Wire(engine, stream) for stream in (1, 2)]
    for _ in range(30):
        rng.choice(wires).engine.handle(rng.choice((1, 2)), scrambled(rng, truth))
        for _ in range(rng.randrange(4)):
            wires[0].step()
    wires[0].run()
    for wire in wires:
        engine.close_stream(wire.stream)
    engine.check()
    assert engine.load().kv_blocks_used == 0
