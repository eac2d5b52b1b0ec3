"""Outcomes that come while a tree is half grown: nothing is done twice, and nothing that can no longer be chosen."""

import pytest

from draft_service.sequence import DraftSequence
from draft_service.terms import published_at
from ssd.speculation.outcomes import Branch, OutcomeTable
from ssd.speculation.prediction import sent_first
from tests.draft_service.harness import Reference, Request, Wire

PROMPT = (61, 5, 5, 230, 8)
BASE = len(PROMPT)
REQUEST = Request(PROMPT, {"temperature": 1.0, "frequency_penalty": 0.3}, k=8, fan_out=2)
JIT, NGRAM = 2, 3


def sequence_of(wire: Wire) -> DraftSequence:
    sequence = wire.engine.live.get(wire.stream, 1)
    assert sequence is not None
    return sequence


def grow(wire: Wire, depth: int) -> None:
    """Steps until the tree of the sequence is that deep."""
    while (tree := sequence_of(wire).round.tree) is None or tree.depth < depth:
        assert wire.step()


def assert_plain(table: OutcomeTable, ids: tuple[int, ...], reference: Reference, depth: int = 8) -> None:
    """A finished table is what plain drafting gives."""
    assert table.base_len == len(ids) and table.branches
    for branch in table.branches:
        text = (*ids, *table.proposal[: branch.accepted], branch.token)
        assert branch.ids == reference.continuation(REQUEST, text, depth), branch


def test_tables_are_sent_at_halves_but_not_a_step_before_the_next_time() -> None:
    assert [sorted(published_at(depth)) for depth in (1, 2, 3, 4, 5, 6, 7, 8, 9, 16)] == [
        [], [], [], [2], [3], [3], [2, 4], [2, 4], [3, 5], [2, 4, 8]
    ]  # fmt: skip
    for depth in range(1, 40):
        assert max(published_at(depth), default=depth) == sent_first(depth), "as the governor reckons"


@pytest.mark.parametrize("depth", [1, 3, 5, 7])
def test_a_miss_is_answered_from_the_branch_without_a_forward_pass(
    wire: Wire, reference: Reference, depth: int
) -> None:
    wire.open(REQUEST)
    grow(wire, depth)
    token = sequence_of(wire).round.tree.paths[3].token
    passes = wire.engine.load().steps
    wire.advance(BASE, (token,), need=True)
    assert wire.engine.load().kv_blocks_used <= 2, "the other branches are given up before the next step"
    (answer,) = wire.engine.finish()[wire.stream].proposals
    assert wire.engine.load().steps == passes
    assert tuple(answer.ids) == reference.continuation(REQUEST, (*PROMPT, token), depth)
    del wire.tables[:]
    wire.run()
    assert wire.tables[0].proposal == tuple(answer.ids)
    assert wire.engine.load().steps == passes + 1 + 8, "the root and eight depths of the next table"
    assert_plain(wire.tables[-1], (*PROMPT, token), reference)


@pytest.mark.parametrize(("told", "grown"), [(2, 3), (2, 4), (4, 7), (0, 5), (1, 6)])
def test_what_a_branch_has_beyond_the_proposal_in_flight_begins_the_next_table(
    wire: Wire, reference: Reference, told: int, grown: int
) -> None:
    """`told` tokens were in the table that the target had, and `grown` when its outcome came."""
    wire.open(REQUEST)
    grow(wire, grown)
    token = sequence_of(wire).round.tree.paths[1].token
    expected = reference.continuation(REQUEST, (*PROMPT, token), grown)
    passes = wire.engine.load().steps
    wire.advance(BASE, (token,), depth=told)
    del wire.tables[:]
    wire.step()
    lead = next(b for b in sequence_of(wire).round.tree.table().branches if b.accepted == told and b.rank == 1)
    assert (lead.token, lead.ids) == (expected[told], expected[told + 1 :])
    if grown > told + 1:
        assert [table.depth for table in wire.tables] == [grown - told - 1], "it is worth sending at once"
    wire.run()
    assert wire.tables[-1].proposal == expected[:told]
    assert wire.engine.load().steps == passes + 1 + 8
    assert_plain(wire.tables[-1], (*PROMPT, token), reference)


@pytest.mark.parametrize(("grown", "saved"), [(2, 0), (3, 0), (4, 1), (5, 2), (7, 4)])
def test_known_tokens_are_not_drafted_again(wire: Wire, grown: int, saved: int) -> None:
    """With two in flight the next one names a branch, and those after it are drafted already."""
    wire.open(REQUEST)
    grow(wire, grown)
    wire.advance(BASE, (sequence_of(wire).round.tree.paths[0].token,), depth=2)
    wire.step()
    drafted = 0
    while (tree := sequence_of(wire).round.tree) is not None:
        drafted += len(tree.growing)
        wire.step()
    assert drafted == 8 * 2 * 3 - saved


def test_a_table_that_was_known_in_full_needs_no_growing(wire: Wire, reference: Reference) -> None:
    request = Request(PROMPT, {"temperature": 0.0}, limits={"max_tokens": 5}, k=4, fan_out=1)
    wire.open(request)
    wire.run()
    branch = wire.tables[-1].branches[0]
    assert len(branch.ids) == 3
    wire.advance(BASE, (branch.token,), depth=0)
    passes = wire.engine.load().steps
    wire.step()
    lead = next(b for b in wire.tables[-1].branches if b.token == branch.ids[0])
    assert lead.ids == branch.ids[1:]
    wire.run()
    assert wire.engine.load().steps <= passes + 3
    wire.advance(BASE + 1, (branch.ids[0],), depth=2)
    wire.run()
    assert wire.tables[-1].proposal == branch.ids[1:]


def test_a_proposal_that_is_told_is_the_one_that_the_table_stands_on(wire: Wire, reference: Reference) -> None:
    wire.open(REQUEST)
    wire.run()
    wire.advance(BASE, (7,), depth=3, in_flight=(9, 10, 11), next_source=NGRAM)
    wire.run()
    assert wire.tables[-1].proposal == (9, 10, 11)
    assert_plain(wire.tables[-1], (*PROMPT, 7), reference)


def test_a_told_proposal_that_is_known_keeps_what_is_known_behind_it(wire: Wire, reference: Reference) -> None:
    wire.open(REQUEST)
    grow(wire, 6)
    token = sequence_of(wire).round.tree.paths[0].token
    expected = reference.continuation(REQUEST, (*PROMPT, token), 6)
    wire.advance(BASE, (token,), depth=3, in_flight=expected[:3])
    wire.step()
    lead = next(b for b in sequence_of(wire).round.tree.table().branches if b.accepted == 3 and b.rank == 1)
    assert lead.ids == expected[4:]
    wire.run()
    assert_plain(wire.tables[-1], (*PROMPT, token), reference)


def test_late_news_of_the_proposal_in_flight_moves_the_tree(wire: Wire, reference: Reference) -> None:
    wire.open(REQUEST)
    wire.advance(BASE, (7,))
    grow(wire, 3)
    before = sequence_of(wire).round.tree.table()
    assert before.proposal == ()
    branch = before.branches[1]
    wire.advance(BASE + 1, (), depth=2, in_flight=(branch.token, *branch.ids[:1]), next_source=JIT)
    del wire.tables[:]
    wire.step()
    after = sequence_of(wire).round.tree.table()
    assert after.proposal == (branch.token, branch.ids[0])
    assert Branch(2, branch.ids[1], branch.ids[2:], rank=1) in after.branches
    passes = wire.engine.load().steps
    wire.advance(BASE + 1, (), depth=2, in_flight=after.proposal, next_source=JIT)
    assert sequence_of(wire).round.tree is not None, "the same news again changes nothing"
    wire.run()
    assert wire.engine.load().steps == passes + 8
    assert_plain(wire.tables[-1], (*PROMPT, 7), reference)


def test_a_proposal_in_flight_from_elsewhere_ends_the_drafting_of_ones_own(wire: Wire, reference: Reference) -> None:
    wire.open(REQUEST, need=True)
    wire.step()
    wire.advance(BASE, (), depth=2, in_flight=(1, 2), next_source=NGRAM)
    wire.run()
    assert not wire.proposals and wire.tables[-1].proposal == (1, 2)
    assert_plain(wire.tables[-1], PROMPT, reference)


def test_told_ids_that_the_draft_does_not_know_are_left_out(wire: Wire) -> None:
    wire.open(REQUEST)
    wire.advance(BASE, (7,), depth=3, in_flight=(9, 5000, 11), next_source=NGRAM)
    wire.run()
    assert wire.tables[-1].proposal == (9,) and not wire.refused
