"""Just-in-time proposals: sequential drafting, served before everything else."""

import pytest

from protos.ssd.v1 import types_pb2
from ssd.models.loader import LoadedModel
from tests.draft_service.harness import Reference, Request, Wire, make_engine

PROMPT = (3, 141, 59, 26, 5)
SD = types_pb2.MODE_SD


@pytest.mark.parametrize("k", [1, 2, 5, 8])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_proposal_equals_plain_drafting(wire: Wire, reference: Reference, temperature: float, k: int) -> None:
    sampling = {"temperature": temperature, "frequency_penalty": 0.4, "top_p": 0.97}
    request = Request(PROMPT, sampling, k=k, mode=SD)
    wire.open(request, need=True)
    wire.run()
    assert [tuple(p.ids) for p in wire.proposals] == [reference.continuation(request, PROMPT, k)]
    assert wire.proposals[0].base_len == len(PROMPT)


def test_mode_sd_builds_no_tables(wire: Wire, reference: Reference) -> None:
    request = Request(PROMPT, k=4, mode=SD)
    wire.open(request)
    wire.run()
    assert not wire.proposals, "nobody waits yet"
    emitted = reference.continuation(request, PROMPT, 1)
    wire.advance(len(PROMPT), emitted, need=True)
    wire.run()
    assert tuple(wire.proposals[0].ids) == reference.continuation(request, PROMPT + emitted, 4)
    assert not wire.tables


def test_a_long_proposal_is_cut_to_what_the_process_allows(loaded: LoadedModel) -> None:
    wire = Wire(make_engine(loaded, max_k=3))
    wire.open(Request(PROMPT, k=8), need=True)
    wire.run()
    assert len(wire.proposals[0].ids) == 3
    assert max(len(branch.ids) for branch in wire.tables[-1].branches) == 3


def test_a_proposal_goes_before_tables_and_tables_are_finished_after_it(wire: Wire) -> None:
    wire.open(Request(PROMPT, k=4), 1)
    while not wire.tables:
        wire.step()
    wire.open(Request((9, 8, 7), k=4, mode=SD), 2, need=True)
    for _ in range(4):
        assert len(wire.tables) == 1
        wire.step()
    assert [p.sequence for p in wire.proposals] == [2]
    wire.run()
    assert wire.tables[-1].depth == 4


def test_a_long_prefill_delays_neither_proposals_nor_tables(loaded: LoadedModel) -> None:
    wire = Wire(make_engine(loaded, token_budget=32))
    wire.open(Request(tuple(range(1, 300)) * 2, k=2), 9, need=True)
    wire.step()
    wire.open(Request(PROMPT, k=2, fan_out=1), 1, need=True)
    steps = 0
    while not any(table.sequence == 1 for table in wire.table_messages):
        assert wire.step()
        steps += 1
    assert steps <= 2 * (1 + 2 + 1 + 2), "prefill of the other sequence takes what is left, and turns with the tree"
    assert {p.sequence for p in wire.proposals} == {1}
    wire.run()
    assert {p.sequence for p in wire.proposals} == {1, 9}


@pytest.mark.parametrize("budget", [1, 3, 7, 64])
def test_chunked_prefill_changes_nothing(loaded: LoadedModel, reference: Reference, budget: int) -> None:
    request = Request(tuple(range(40, 70)), {"temperature": 1.0}, k=3)
    wire = Wire(make_engine(loaded, token_budget=budget))
    wire.open(request, need=True)
    wire.run()
    assert tuple(wire.proposals[0].ids) == reference.continuation(request, request.prompt, 3)
    table = wire.tables[-1]
    for branch in table.branches:
        text = (*request.prompt, *table.proposal[: branch.accepted], branch.token)
        assert branch.ids == reference.continuation(request, text, 3)


def test_a_known_prefix_is_not_computed_again(wire: Wire, reference: Reference) -> None:
    prompt = tuple(range(100, 133))
    wire.open(Request(prompt, mode=SD), 1, need=True)
    wire.run()
    wire.send(closes=[1])
    request = Request((*prompt[:30], 7, 8), {"temperature": 1.0}, mode=SD)
    wire.open(request, 2)
    sequence = wire.engine.live.get(wire.stream, 2)
    assert sequence is not None and len(sequence.trunk.ids) == 28
    wire.advance(len(request.prompt), (5,), 2, need=True)
    wire.run()
    assert tuple(wire.proposals[-1].ids) == reference.continuation(request, (*request.prompt, 5), 4)
