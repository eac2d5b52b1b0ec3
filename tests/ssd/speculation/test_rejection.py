"""Rejection verification: equal to the obvious reference, blind to batch company, and strict about what it is given."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd.speculation.finish import StopRules
from ssd.speculation.params import SamplingParams
from ssd.speculation.philox import NoiseStream, gumbel, seed_pattern, uniform_words
from ssd.speculation.rejection import Block, reject, reject_blocks, residual
from ssd.speculation.sampling import DrawRow, TokenHistory, block_rows, draw
from ssd.speculation.sparse_law import (
    SparseLaw,
    draw_from_sparse_law,
    draw_from_sparse_laws,
    filtered_laws,
    point_mass,
    saguaro,
    sparse_laws,
)
from tests.ssd.speculation.laws import adjusted_row, filtered_law

VOCAB = 12
tokens = st.integers(0, VOCAB - 1)
params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-300, 0.5, 1.0, 1.5]),
    top_k=st.sampled_from([0, 0, 3, 30]),
    top_p=st.sampled_from([1.0, 1.0, 0.7]),
    min_p=st.sampled_from([0.0, 0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.4]),
    logit_bias=st.sampled_from([(), ((1, 2.0),)]),
    seed=st.integers(0, 2**64 - 1),
    logprobs=st.integers(-1, 3),
)


def random_logits(count: int, seed: int, vocab: int = VOCAB) -> torch.Tensor:
    return 2 * torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def verifications(draw_from):
    """One sequence's rows, block and logits, with a proposal that its laws really gave."""
    params = draw_from(params_strategy)
    history = TokenHistory(draw_from(st.lists(tokens, min_size=1, max_size=5)), draw_from(st.lists(tokens, max_size=4)))
    draft_params = replace(params, temperature=draw_from(st.sampled_from([0.0, 0.7, 1.2])))
    ids: list[int] = []
    laws: list[SparseLaw | None] = []
    for _ in range(draw_from(st.integers(0, 4))):
        position = len(history) + len(ids)
        logits = random_logits(1, draw_from(st.integers(0, 1000)))
        law = filtered_laws(logits, [DrawRow(draft_params, position, history, tuple(ids))])
        chosen = sparse_laws(law, draw_from(st.integers(1, VOCAB)), fan_out=1, scale=draw_from(st.floats(0, 1)))[0]
        drawn = draw_from(st.booleans())
        laws.append(chosen if drawn else None)
        ids.append(draw_from_sparse_law(chosen, params.seed, position) if drawn else draw_from(tokens))
    logits = random_logits(len(ids) + 1, draw_from(st.integers(0, 1000)))
    return logits, block_rows(params, history, ids), Block(tuple(ids), tuple(laws))


def law_by_reference(logits: list[float], row: DrawRow) -> list[float]:
    output = (*row.history.output_ids, *row.ahead)
    adjusted = adjusted_row(logits, row.params, row.history._prompt, output, row.forbidden)
    if row.params.greedy:
        best = max(range(VOCAB), key=lambda v: (adjusted[v], -v))
        return [float(v == best) for v in range(VOCAB)]
    return filtered_law(adjusted, row.params)


def reject_by_reference(logits: torch.Tensor, rows: list[DrawRow], block: Block) -> list[int]:
    """One token at a time, in plain Python."""
    emitted: list[int] = []
    for j, (values, row) in enumerate(zip(logits.tolist(), rows, strict=True)):
        p = law_by_reference(values, row)
        seed, position = torch.tensor([seed_pattern(row.params.seed)]), torch.tensor([row.position])
        stream, left = NoiseStream.TARGET, p
        if j < len(block.ids):
            token, law = block.ids[j], block.laws[j] or point_mass(block.ids[j])
            q = dict(zip(law.ids, law.probabilities, strict=True))
            high, low = uniform_words(seed, position, 2, stream=NoiseStream.ACCEPT)[0].tolist()
            if (high * 2**21 + low // 2**11) / 2**53 < p[token] / q[token]:
                emitted.append(token)
                continue
            stream, left = NoiseStream.RESIDUAL, [max(0.0, p[v] - q.get(v, 0.0)) for v in range(VOCAB)]
        noise = gumbel(seed, position, VOCAB, stream=stream)[0].tolist()
        scores = [math.log(w) + g if w > 1e-11 else -math.inf for w, g in zip(left, noise, strict=True)]
        return [*emitted, max(range(VOCAB), key=lambda v: (scores[v], -v))]
    raise AssertionError("the last row always ends a block")


@settings(deadline=None, max_examples=150)
@given(cases=st.lists(verifications(), min_size=1, max_size=4))
def test_verdicts_equal_the_reference_and_do_not_depend_on_company(cases):
    logits = torch.cat([logits for logits, _, _ in cases])
    rows = [row for _, rows, _ in cases for row in rows]
    together = reject_blocks(logits, rows, [block for _, _, block in cases])
    for verdict, (own, own_rows, block) in zip(together, cases, strict=True):
        assert verdict == reject(own, own_rows, block.ids, block.laws)
        assert list(verdict.ids) == reject_by_reference(own, own_rows, block)
        assert verdict.accepted == len(verdict.emitted) - 1
        assert verdict.ids[: verdict.accepted] == block.ids[: verdict.accepted]


@settings(deadline=None)
@given(params=params_strategy, position=st.integers(1, 50), seed=st.integers(0, 1000))
def test_without_a_proposal_the_token_is_the_one_of_plain_decoding(params, position, seed):
    history = TokenHistory([1], range(2, 2 + position % 8))
    rows = block_rows(params, history, ())
    logits = random_logits(1, seed)
    assert reject(logits, rows, (), ()).emitted == tuple(draw(logits, rows))


@settings(deadline=None)
@given(case=verifications())
def test_at_temperature_zero_exactly_the_greedy_text_is_emitted(case):
    logits, rows, block = case
    rows = [replace(row, params=replace(row.params, temperature=0.0)) for row in rows]
    greedy = draw(logits, rows)
    verdict = reject(logits, rows, block.ids, block.laws)
    assert verdict.emitted == tuple(greedy[: verdict.accepted + 1])
    assert verdict.accepted == len(block.ids) or block.ids[verdict.accepted] != greedy[verdict.accepted].id


@settings(deadline=None, max_examples=200)
@given(params=params_strategy, prompt=st.lists(tokens, min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_filtered_laws_are_those_of_the_reference(params, prompt, seed):
    row = DrawRow(params, 5, TokenHistory(prompt, [3, 3]), (4,), frozenset({0}))
    logits = random_logits(1, seed)
    law = filtered_laws(logits, [row])[0]
    assert law.tolist() == pytest.approx(law_by_reference(logits[0].tolist(), row), abs=1e-10)
    assert float(law.sum()) == pytest.approx(1.0, abs=1e-15)


def test_identical_laws_are_always_accepted():
    logits = random_logits(3, 4)
    for seed in range(200):
        params = SamplingParams(seed=seed)
        history = TokenHistory([1, 2])
        laws = sparse_laws(filtered_laws(logits[:2], block_rows(params, history, (0,))), VOCAB)
        ids = draw_from_sparse_laws(laws, [seed] * 2, [2, 3])
        assert reject(logits, block_rows(params, history, ids), ids, laws).accepted == 2


def test_a_token_that_the_target_excludes_is_never_accepted_nor_drawn():
    logits = torch.tensor([[0.0, 0.0, 9.0, 0.0]]).expand(2, -1)
    rules = StopRules(eos_ids=frozenset({2}), min_tokens=10)
    seen = set()
    for seed in range(300):
        rows = block_rows(SamplingParams(seed=seed), TokenHistory([0]), (2,), rules)
        for law in (None, SparseLaw((1, 2), (0.25, 0.75))):
            verdict = reject(logits, rows, (2,), (law,))
            assert verdict.accepted == 0
            seen.add(verdict.ids[0])
    assert seen == {0, 1, 3}


def test_the_residual_of_three_tokens_by_hand():
    p = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
    ids = torch.tensor([[0, 1]])
    assert residual(p, ids, torch.tensor([[0.25, 0.75]], dtype=torch.float64)).tolist() == [[0.25, 0.0, 0.25]]
    same = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
    assert torch.equal(residual(p, torch.tensor([[0, 1, 2]]), same), p)


def test_saguaro_scales_the_likeliest_tokens_and_nothing_else():
    law = torch.tensor([[0.125, 0.5, 0.25, 0.125]], dtype=torch.float64)
    assert torch.equal(saguaro(law, 1, 1.0), law)
    half = saguaro(law, 1, 0.5)[0]
    assert half.tolist() == pytest.approx([0.2, 0.4, 0.2, 0.2])
    assert saguaro(law, 1, 0.0).tolist() == [[0.5, 0.0, 0.0, 0.5]]
    assert saguaro(law, 2, 0.0).tolist() == [[0.0, 0.0, 0.0, 1.0]]
    assert torch.equal(saguaro(law, 3, 0.0), law)
    with pytest.raises(ValueError, match="scale"):
        saguaro(law, 1, 1.5)
    with pytest.raises(ValueError, match="fan_out"):
        saguaro(law, -1, 0.5)


def test_less_saguaro_mass_means_fewer_acceptances_and_more_cached_replacements():
    target = random_logits(1, 1)[0].softmax(dim=-1)
    draft = (target.log() + 0.1 * random_logits(1, 2)[0]).softmax(dim=-1)
    cached = draft.topk(3).indices
    acceptance, hits = [], []
    for scale in (0.75, 0.5, 0.25, 0.0):
        q = saguaro(draft[None], 2, scale)[0]
        left = (target - q).clamp(min=0)
        acceptance.append(float(torch.minimum(target, q).sum()))
        hits.append(round(float(left[cached].sum() / left.sum()), 9))
    assert acceptance == sorted(acceptance, reverse=True)
    assert hits == sorted(hits)


def test_sparse_laws_keep_the_likeliest_tokens_and_survive_float32():
    law = random_logits(1, 7)[0].softmax(dim=-1)
    sparse = sparse_laws(law[None], 4)[0]
    best = sorted(law.topk(4).indices.tolist())
    assert list(sparse.ids) == best
    assert sparse.probabilities == pytest.approx([float(law[v] / law[best].sum()) for v in best], rel=1e-6)
    assert torch.tensor(sparse.weights, dtype=torch.float32).tolist() == list(sparse.weights)
    assert sparse_laws(torch.tensor([[0.0, 1.0, 0.0]]), 3) == [point_mass(1)]


def test_proposals_do_not_depend_on_company():
    laws = sparse_laws(random_logits(6, 3).softmax(dim=-1), 5) + [point_mass(2)]
    seeds, positions = [2**64 - 1, 5, 5, 0, 9, 1, 7], [0, 3, 4, 2**20, 5, 6, 7]
    together = draw_from_sparse_laws(laws, seeds, positions)
    assert together == [draw_from_sparse_law(*one) for one in zip(laws, seeds, positions, strict=True)]
    assert together[-1] == 2
    wide = sparse_laws(random_logits(1, 3, vocab=5000).softmax(dim=-1), 5)
    assert draw_from_sparse_laws(wide + laws, [4, *seeds], [8, *positions]) == [
        draw_from_sparse_law(wide[0], 4, 8),
        *together,
    ]


def test_groups_of_a_large_vocabulary_change_nothing():
    vocab, sequences = 150_000, 12
    logits = random_logits(3 * sequences, 5, vocab).float()
    cases = [(SamplingParams(seed=s, top_p=0.9 if s % 2 else 1.0), TokenHistory([s])) for s in range(sequences)]
    rows, blocks = [], []
    for s, (params, history) in enumerate(cases):
        laws = sparse_laws(filtered_laws(logits[3 * s : 3 * s + 2], block_rows(params, history, (0,))), 8)
        ids = tuple(draw_from_sparse_laws(laws, [s] * 2, [1, 2]))
        rows += block_rows(params, history, ids)
        blocks.append(Block(ids, tuple(laws)))
    together = reject_blocks(logits, rows, blocks)
    for s in (0, 5, 11):
        mine = slice(3 * s, 3 * s + 3)
        assert together[s] == reject(logits[mine], rows[mine], blocks[s].ids, blocks[s].laws)


@pytest.mark.parametrize(
    ("ids", "weights"),
    [
        ((), ()),
        ((1,), ()),
        ((2, 1), (0.5, 0.5)),
        ((1, 1), (0.5, 0.5)),
        ((-1, 1), (0.5, 0.5)),
        ((1, 2), (0.5, 0.0)),
        ((1, 2), (0.5, math.nan)),
        ((1, 2), (0.5, math.inf)),
        ((1, 2), (0.5, -0.1)),
    ],
)
def test_broken_laws_are_refused(ids, weights):
    with pytest.raises(ValueError, match="law"):
        SparseLaw(ids, weights)


def test_proposals_that_their_law_cannot_give_are_refused():
    rows = block_rows(SamplingParams(), TokenHistory([0]), (3,))
    with pytest.raises(ValueError, match="cannot have been drawn"):
        reject(torch.zeros(2, 8), rows, (3,), (SparseLaw((1, 2), (0.5, 0.5)),))
    with pytest.raises(ValueError, match="as many laws"):
        reject(torch.zeros(2, 8), rows, (3,), ())
    with pytest.raises(ValueError, match="outside the vocabulary"):
        reject(torch.zeros(2, 8), rows, (3,), (SparseLaw((3, 8), (0.5, 0.5)),))
    with pytest.raises(ValueError, match="need 2 rows"):
        reject(torch.zeros(3, 8), rows, (3,), (None,))
    with pytest.raises(ValueError, match="row 1"):
        reject(torch.tensor([[0.0] * 8, [math.nan] * 8]), rows, (3,), (None,))


def test_no_blocks_give_no_verdicts():
    assert reject_blocks(torch.zeros(0, 8), [], []) == []
    assert filtered_laws(torch.zeros(0, 8), []).shape == (0, 8)
