"""Rejection verification through the engine: whatever is drafted, the output's law is the target's own."""

import itertools
from collections import Counter
from functools import cache

import pytest
import torch

from protos.ssd.v1 import types_pb2
from ssd.proto_convert import outcome_table_message
from ssd.speculation.law import SparseLaw
from ssd.speculation.outcomes import Branch, OutcomeTable
from ssd.speculation.sampling import SamplingParams, TokenHistory, row_after
from ssd.speculation.sparse_law import draw_from_sparse_laws, filtered_laws, sparse_laws
from tests.target_service.rig import SSD, VOCAB, Rig, law, opening, plain_ids

SAMPLING = {"temperature": 1.2, "top_k": 3}
PARAMS = SamplingParams(**SAMPLING)
COUNT = 1000
PROMPT = (4,)


@cache
def target_law(text: tuple[int, ...]) -> torch.Tensor:
    row = row_after(PARAMS, TokenHistory(text))
    return filtered_laws(law(text)[None], [row])[0]


@cache
def drafted_law(text: tuple[int, ...]) -> SparseLaw:
    """Another model's: it has something of the target's, and its own mind."""
    logits = 0.8 * law(text) + 0.6 * law((9, *text))
    return sparse_laws(filtered_laws(logits[None], [row_after(SamplingParams(), TokenHistory(text))]), 4)[0]


@cache
def drafted(text: tuple[int, ...]) -> list[int]:
    """The draft's token after `text` for each sequence; its seed is its number."""
    return draw_from_sparse_laws([drafted_law(text)] * COUNT, range(COUNT), [len(text)] * COUNT)


def guess(number: int, text: tuple[int, ...], count: int) -> tuple[list[int], list[SparseLaw]]:
    ids: list[int] = []
    for _ in range(count):
        ids.append(drafted((*text, *ids))[number])
    return ids, [drafted_law((*text, *ids[:j])) for j in range(count)]


def wrong(laws: list[SparseLaw]) -> list[SparseLaw]:
    return [SparseLaw(one.ids, one.weights[::-1]) for one in laws]


def opened(prompt=PROMPT, *, planes=None, **options) -> Rig:
    rig = Rig(blocks=4 * COUNT, budget=10 * COUNT, max_sequences=COUNT + 10, planes=planes)
    options = {"rejection": True, "max_tokens": 4, "drafting": False} | options
    rig.open(*(opening(i, prompt, sampling={**SAMPLING, "seed": i}, **options) for i in range(COUNT)))
    return rig


def surprise(rig: Rig, prompt: tuple[int, ...] = PROMPT) -> float:
    """Chi-square of the first three tokens against the target's law, in standard deviations from what it should be."""
    seen = Counter(tuple(rig.ids(i)[:3]) for i in range(COUNT))
    expected: dict[tuple[int, ...], float] = {}
    for triple in itertools.product(range(VOCAB), repeat=3):
        chance = 1.0
        for j, token in enumerate(triple):
            if chance:
                chance *= float(target_law((*prompt, *triple[:j]))[token])
        if chance:
            expected[triple] = COUNT * chance
    assert set(seen) <= set(expected)
    cells: list[tuple[float, float]] = []
    rest = [0.0, 0.0]
    for triple, count in expected.items():
        if count >= 5:
            cells.append((seen[triple], count))
        else:
            rest = [rest[0] + seen[triple], rest[1] + count]
    cells.append((rest[0], max(rest[1], 1.0)))
    freedom = len(cells) - 1
    statistic = sum((one - count) ** 2 / count for one, count in cells)
    return (statistic - freedom) / (2 * freedom) ** 0.5


def begun(**options) -> tuple[Rig, list[tuple[int, ...]]]:
    """Every sequence after its first token, and its text."""
    rig = opened(**options)
    rig.step()
    return rig, [(*PROMPT, *rig.ids(i)) for i in range(COUNT)]


def proposals(rig: Rig, texts: list[tuple[int, ...]], *, tamper=lambda laws: laws) -> None:
    for i, text in enumerate(texts):
        ids, laws = guess(i, text, 2)
        rig.propose(i, len(text), ids, tamper(laws))


def tables(rig: Rig, texts: list[tuple[int, ...]]) -> None:
    """A branch for every outcome that the round with the proposals can have."""
    for i, text in enumerate(texts):
        in_flight, _ = guess(i, text, 2)
        branches = []
        for k in range(3):
            path = (*text, *in_flight[:k])
            for token in target_law(path).nonzero()[:, 0].tolist():
                ids, laws = guess(i, (*path, token), 2)
                branches.append(Branch(k, token, tuple(ids), tuple(laws), rank=9))
        table = OutcomeTable(len(text), tuple(in_flight), 2, tuple(branches))
        rig.send(tables=[outcome_table_message(i, table)])


def totals(rig: Rig) -> tuple[int, int, set[int]]:
    rounds = [outcome for outcomes in rig.outcomes.values() for outcome in outcomes]
    accepted = sum(outcome.accepted for outcome in rounds)
    return sum(outcome.proposed for outcome in rounds), accepted, {outcome.source for outcome in rounds}


def test_just_in_time_proposals_leave_the_targets_law():
    rig, texts = begun()
    proposals(rig, texts)
    rig.run()
    assert surprise(rig) < 4
    proposed, accepted, _ = totals(rig)
    assert proposed == 2 * COUNT
    assert 0.2 < accepted / proposed < 0.8


def test_a_law_that_the_tokens_were_not_drawn_from_bends_it():
    rig, texts = begun()
    proposals(rig, texts, tamper=wrong)
    rig.run()
    assert surprise(rig) > 10


def test_hits_leave_the_targets_law():
    rig, texts = begun(max_tokens=6)
    proposals(rig, texts)
    tables(rig, texts)
    outcomes = rig.step()
    assert all(outcome.hit and outcome.next_depth and outcome.hit_rank == 9 for outcome in outcomes)
    assert {outcome.next_source for outcome in outcomes} == {types_pb2.PROPOSAL_SOURCE_TABLE}
    rig.run()
    assert surprise(rig) < 4
    assert totals(rig)[2] >= {types_pb2.PROPOSAL_SOURCE_JIT, types_pb2.PROPOSAL_SOURCE_TABLE}


def test_a_late_proposal_is_rebased_with_its_laws():
    rig = opened()
    rig.step()
    for i in range(COUNT):
        rig.propose(i, 1, *guess(i, PROMPT, 3))
    rig.run()
    assert surprise(rig) < 4
    proposed, accepted, _ = totals(rig)
    assert proposed > COUNT / 10 and accepted > 0


@pytest.mark.parametrize("prompt", [(4, 5, 4), (2, 3, 2, 3, 2)])  # often right, always wrong
def test_prompt_lookups_are_point_masses(prompt):
    rig = opened(prompt, fallback=types_pb2.FALLBACK_NGRAM)
    rig.run()
    assert surprise(rig, prompt) < 4
    proposed, accepted, sources = totals(rig)
    assert proposed > COUNT / 10 and (accepted > 0) == (prompt[0] == 4)
    assert types_pb2.PROPOSAL_SOURCE_NGRAM in sources


def test_without_proposals_the_ids_are_those_of_coupled_decoding():
    rig = opened()
    rig.run()
    for i in range(COUNT // 10):
        message = opening(i, PROMPT, sampling={**SAMPLING, "seed": i}, max_tokens=4)
        assert rig.ids(i) == plain_ids(message)


def test_coupled_rows_in_the_same_steps_keep_their_ids():
    rig = opened(max_tokens=6)
    coupled = [opening(COUNT + i, PROMPT, sampling={**SAMPLING, "seed": i}, max_tokens=6) for i in range(5)]
    rig.open(*coupled)
    for message in coupled:
        rig.propose(message.sequence, 1, [3, 3], [SparseLaw((3,), (1.0,))] * 2)
    rig.step()
    proposals(rig, [(*PROMPT, *rig.ids(i)) for i in range(COUNT)])
    rig.run()
    for message in coupled:
        assert rig.ids(message.sequence) == plain_ids(message)


def test_a_broken_law_is_never_used():
    rig = Rig()
    rig.open(opening(1, PROMPT, rejection=True, mode=SSD))
    good, other = SparseLaw((3, 8), (1.0, 2.0)), SparseLaw((4,), (1.0,))
    messages = [[good, other], [good]]
    for laws in messages:
        wire = [types_pb2.SparseLaw(ids=one.ids, weights=one.weights) for one in laws]
        rig.send(proposals=[types_pb2.Proposal(sequence=1, base_len=1, ids=[3, 8], laws=wire)])
    (outcome,) = rig.step()
    assert outcome.proposed == 1


def test_one_row_without_a_token_to_draw_leaves_the_others():
    rig = Rig()
    rig.open(*(opening(i, [5, i], rejection=True, drafting=False, sampling={"temperature": 1.0}) for i in (1, 2)))
    rig.step()
    healthy = rig.runner.run

    def run(rows):
        logits = healthy(rows)
        logits[[row.table is rig.engine.roster.live[1, 2].table for row in rows]] = torch.nan
        return logits

    rig.runner.run = run
    rig.step()
    rig.runner.run = healthy
    rig.run()
    assert set(rig.refused) == {2}
    assert len(rig.ids(1)) == 12


@pytest.mark.parametrize("logprobs", [0, 2])
def test_logprobs_belong_to_the_emitted_ids(logprobs):
    rig = Rig()
    rig.open(opening(1, PROMPT, rejection=True, logprobs=logprobs, sampling=SAMPLING))
    rig.propose(1, 1, *guess(1, PROMPT, 2))
    rig.run()
    assert [one.id for outcome in rig.outcomes[1] for one in outcome.logprobs] == rig.ids(1)
