"""Outcome tables say what plain drafting after each outcome would say."""

import pytest

from draft_service.engine import DraftEngine
from protos.ssd.v1 import types_pb2
from ssd.models.loader import LoadedModel
from ssd.speculation.outcomes import OutcomeTable
from tests.draft_service.harness import Reference, Request, Wire, make_engine

PROMPT = (11, 12, 13, 12, 11, 200, 31)
TEMPERATURES = (0.0, 0.7, 1.0)
ADJUSTMENTS = {
    "plain": {},
    "penalties": {"repetition_penalty": 1.7, "presence_penalty": 0.8, "frequency_penalty": 0.9},
    "filters": {"top_k": 12, "top_p": 0.9, "min_p": 0.02},
    "all": {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "top_k": 20, "top_p": 0.95, "logit_bias": {40: 3.0}},
}


def assert_equals_plain_drafting(
    table: OutcomeTable, request: Request, ids: tuple[int, ...], reference: Reference
) -> None:
    """Every branch of a finished table, and the choice of branches, against the slow reference."""
    depth = len(table.proposal)
    assert table.base_len == len(ids)
    for branch in table.branches:
        text = (*ids, *table.proposal[: branch.accepted], branch.token)
        assert branch.ids == reference.continuation(request, text, request.k), branch
    for accepted in range(depth + 1):
        count = request.fan_out if depth else request.fan_out * (request.k + 1)
        ranked = reference.candidates(request, (*ids, *table.proposal[:accepted]), count + 1)
        possible = [token for token in ranked if accepted == depth or token != table.proposal[accepted]][:count]
        assert [branch.token for branch in table.branches if branch.accepted == accepted] == possible


@pytest.mark.parametrize("adjustment", ADJUSTMENTS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_every_branch_equals_plain_drafting_after_its_outcome(
    wire: Wire, reference: Reference, temperature: float, adjustment: str
) -> None:
    request = Request(PROMPT, {"temperature": temperature, "seed": 1 << 63, **ADJUSTMENTS[adjustment]}, k=4, fan_out=2)
    output = (5, 5, 90)
    wire.open(request, output=output, need=True)
    wire.run()
    assert tuple(wire.proposals[0].ids) == reference.continuation(request, PROMPT + output, 4)
    assert_equals_plain_drafting(wire.tables[-1], request, PROMPT + output, reference)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_first_token_is_anticipated_with_the_whole_budget(
    wire: Wire, reference: Reference, temperature: float
) -> None:
    request = Request(PROMPT, {"temperature": temperature}, k=3, fan_out=2)
    wire.open(request)
    wire.run()
    assert not wire.proposals
    assert wire.tables[-1].proposal == ()
    assert len(wire.tables[-1].branches) == 2 * (3 + 1)
    assert_equals_plain_drafting(wire.tables[-1], request, PROMPT, reference)


@pytest.mark.parametrize(("k", "depths"), [(4, [2, 4]), (5, [3, 5]), (6, [3, 6]), (9, [3, 5, 9])])
def test_a_table_is_sent_at_halves_of_its_depth_and_when_finished(wire: Wire, k: int, depths: list[int]) -> None:
    wire.open(Request(PROMPT, k=k))
    wire.run()
    assert [table.depth for table in wire.tables] == depths
    whole = wire.tables[-1]
    for table in wire.tables:
        assert [branch.key for branch in table.branches] == [branch.key for branch in whole.branches]
        assert all(whole.branches[i].ids[: table.depth] == branch.ids for i, branch in enumerate(table.branches))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_shallow_table_is_sent_once(wire: Wire, reference: Reference, k: int) -> None:
    request = Request(PROMPT, k=k)
    wire.open(request, need=True)
    wire.run()
    assert [table.depth for table in wire.tables] == [k]
    assert_equals_plain_drafting(wire.tables[0], request, PROMPT, reference)


def test_a_table_has_no_more_branches_than_the_process_allows(loaded: LoadedModel) -> None:
    wire = Wire(make_engine(loaded, max_branches=7))
    wire.open(Request(PROMPT, k=4, fan_out=3), need=True)
    wire.run()
    assert len(wire.tables[-1].branches) == 7
    assert {branch.accepted for branch in wire.tables[-1].branches} == {0, 1, 2, 3, 4}


def test_a_fan_out_beyond_the_vocabulary_gives_what_there_is(loaded: LoadedModel) -> None:
    wire = Wire(make_engine(loaded, max_branches=100_000, token_budget=16))
    wire.open(Request(PROMPT, k=1, fan_out=1000))
    wire.run()
    assert len(wire.tables[-1].branches) == loaded.config.vocab_size


def test_scratch_blocks_go_back_when_a_table_is_finished(wire: Wire) -> None:
    wire.open(Request(PROMPT, k=4), need=True)
    held = []
    while wire.step():
        held.append(wire.engine.load().kv_blocks_used)
    assert max(held) > held[-1] == -(-(len(PROMPT) + 4) // 4)


def test_nothing_is_drafted_past_the_output_limit(wire: Wire, reference: Reference) -> None:
    request = Request(PROMPT, limits={"max_tokens": 5}, k=4)
    wire.open(request)
    wire.run()
    assert {len(branch.ids) for branch in wire.tables[-1].branches} == {3}, (
        "1 + 3 drafted tokens, and the target's own last"
    )
    first = reference.continuation(request, PROMPT, 1)
    wire.advance(len(PROMPT), first, depth=3)
    wire.run()
    assert {branch.accepted: len(branch.ids) for branch in wire.tables[-1].branches} == {0: 2, 1: 1}
    wire.advance(len(PROMPT) + 1, reference.continuation(request, PROMPT + first, 3), need=True)
    wire.run()
    assert list(wire.proposals[-1].ids) == []


def test_an_end_of_sequence_ends_branches_and_is_no_outcome_to_prepare_for(wire: Wire, reference: Reference) -> None:
    text = reference.continuation(Request(PROMPT), PROMPT, 6)
    ranked = reference.candidates(Request(PROMPT), (*PROMPT, *text[:3]), 3)
    assert text[2] not in text[:2] and text[3] == ranked[0]
    request = Request(PROMPT, limits={"stop_ids": [text[2], ranked[1]]}, k=3, fan_out=3)
    wire.open(request, need=True)
    wire.run()
    assert tuple(wire.proposals[0].ids) == text[:3], "the end itself is proposed, nothing after it"
    tokens = [branch.token for table in wire.tables for branch in table.branches]
    assert tokens and not {text[2], ranked[1]} & set(tokens)
    for branch in wire.tables[-1].branches:
        after = (*PROMPT, *wire.tables[-1].proposal[: branch.accepted], branch.token)
        assert branch.ids == reference.continuation(request, after, 3)


def test_ending_ids_are_not_drawn_before_min_tokens(wire: Wire, reference: Reference) -> None:
    free = reference.continuation(Request(PROMPT), PROMPT, 4)
    limits = {"stop_ids": [free[0], free[2]], "min_tokens": 3, "max_tokens": 50}
    request = Request(PROMPT, limits=limits, k=4)
    wire.open(request, need=True)
    wire.run()
    assert free[0] not in wire.proposals[0].ids[:3]
    assert tuple(wire.proposals[0].ids) == reference.continuation(request, PROMPT, 4)


def test_ids_beyond_the_clients_vocabulary_are_never_drafted(loaded: LoadedModel) -> None:
    whole = make_engine(loaded)
    info = types_pb2.ModelInfo(vocab_size=64)
    engine = DraftEngine(whole._passes._runner, whole._pool, loaded.config, whole._config, info)
    wire = Wire(engine)
    wire.open(Request((1, 2, 3), {"temperature": 1.0}), need=True)
    wire.run()
    drafted = [i for branch in wire.tables[-1].branches for i in (branch.token, *branch.ids)]
    assert wire.proposals[0].ids and max([*drafted, *wire.proposals[0].ids]) < 64
