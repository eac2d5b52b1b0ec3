"""Rejection verification: tokens are drawn from the draft's own law, and exactly that law goes with them."""

import math
from collections import Counter
from collections.abc import Sequence

import pytest
import torch

from protos.ssd.v1 import draft_pb2, types_pb2
from ssd.models.loader import LoadedModel
from ssd.proto_convert import proposal
from ssd.runtime.blocks import BlockTable
from ssd.runtime.runner import RunRow
from ssd.speculation.law import SparseLaw
from ssd.speculation.sparse_law import draw_from_sparse_law
from tests.draft_service.harness import STREAM, Reference, Request, Wire, make_engine

PROMPT = (8, 90, 91, 8, 250)
BASE = len(PROMPT)
SIZE = 64
REJECTION = {"verification": types_pb2.VERIFICATION_REJECTION, "saguaro_c": 1.0}
SAMPLING = {
    "plain": {"temperature": 1.0},
    "hot": {"temperature": 1.6},
    "filters": {"temperature": 0.8, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
    "few": {"temperature": 1.0, "top_k": 2},
    "greedy": {"temperature": 0.0},
}


def rejecting(sampling: dict, scale: float = 1.0, **more) -> Request:
    return Request(PROMPT, sampling, more=REJECTION | {"saguaro_c": scale}, **{"k": 3, "fan_out": 2} | more)


class Laws:
    """The draft's laws by definition, from whole forwards."""

    def __init__(self, reference: Reference, sampling: dict) -> None:
        self.reference = reference
        self.sampling = sampling

    def logits(self, ids: Sequence[int]) -> list[float]:
        table = BlockTable(self.reference.pool)
        table.ensure(len(ids))
        logits = self.reference.runner.run([RunRow(list(ids), 0, table, 1)])
        table.release()
        return logits[0].tolist()

    def law(self, ids: Sequence[int], fan_out: int = 0, scale: float = 1.0) -> dict[int, float]:
        """Filtered, cut to the likeliest, scaled."""
        logits = self.logits(ids)
        order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
        temperature = self.sampling["temperature"]
        if temperature == 0:
            return {order[0]: 1.0}
        weights = {i: math.exp((logits[i] - logits[order[0]]) / temperature) for i in order}
        kept = order[: self.sampling.get("top_k") or None]
        total, share, nucleus = sum(weights[i] for i in kept), 0.0, []
        for token in kept:
            if share >= self.sampling.get("top_p", 1.0) * total:
                break
            nucleus.append(token)
            share += weights[token]
        floor = self.sampling.get("min_p", 0.0)
        nucleus = [token for token in nucleus if weights[token] >= floor][:SIZE]
        scaled = {token: weights[token] * (scale if i <= fan_out else 1.0) for i, token in enumerate(nucleus)}
        if not any(scaled.values()):
            scaled = {token: weights[token] for token in nucleus}
        total = sum(scaled.values())
        return {token: weight / total for token, weight in scaled.items() if weight > 0.0}

    def ranked(self, ids: Sequence[int]) -> list[int]:
        logits = self.logits(ids)
        return sorted(range(len(logits)), key=lambda i: (-logits[i], i))


def assert_is(law: SparseLaw, expected: dict[int, float]) -> None:
    assert set(law.ids) == set(expected)
    for token, probability in zip(law.ids, law.probabilities, strict=True):
        assert probability == pytest.approx(expected[token], rel=1e-5)


def assert_drawn(
    ids: Sequence[int], drafted: Sequence[int], laws: Sequence[SparseLaw], known: Laws, fan_outs: Sequence[int] = (),
    scale: float = 1.0,
) -> None:  # fmt: skip
    """`drafted` after `ids` come from the right laws, by the draft's noise of their positions."""
    assert len(drafted) == len(laws)
    text = list(ids)
    for place, (token, law) in enumerate(zip(drafted, laws, strict=True)):
        assert_is(law, known.law(text, fan_outs[place] if fan_outs else 0, scale))
        assert token == draw_from_sparse_law(law, 7, len(text))
        text.append(token)


@pytest.mark.parametrize("name", SAMPLING)
def test_proposals_and_branches_come_with_the_laws_that_they_were_drawn_from(
    wire: Wire, reference: Reference, name: str
) -> None:
    request, known = rejecting(SAMPLING[name]), Laws(reference, SAMPLING[name])
    wire.open(request, need=True)
    wire.run()
    made = proposal(wire.proposals[0], vocab_size=320)
    assert len(made.ids) == 3
    assert_drawn(PROMPT, made.ids, made.laws, known)
    table = wire.tables[-1]
    assert table.proposal == made.ids
    for branch in table.branches:
        assert len(branch.ids) == 3
        assert_drawn((*PROMPT, *made.ids[: branch.accepted], branch.token), branch.ids, branch.laws, known)


@pytest.mark.parametrize("name", SAMPLING)
def test_outcomes_are_anticipated_without_noise(wire: Wire, reference: Reference, name: str) -> None:
    known = Laws(reference, SAMPLING[name])
    wire.open(rejecting(SAMPLING[name], fan_out=3), need=True)
    wire.run()
    table = wire.tables[-1]
    for k in range(len(table.proposal) + 1):
        ranked = known.ranked((*PROMPT, *table.proposal[:k]))
        possible = [token for token in ranked if token not in table.proposal[k : k + 1]][:3]
        assert [(b.token, b.rank) for b in table.branches if b.accepted == k] == [
            (token, rank) for rank, token in enumerate(possible, start=1)
        ]


@pytest.mark.parametrize("scale", [0.5, 0.1, 0.0])
@pytest.mark.parametrize("name", ["plain", "filters", "few", "greedy"])
def test_saguaro_scales_the_likeliest_tokens_by_the_fan_out_at_their_place(
    wire: Wire, reference: Reference, name: str, scale: float
) -> None:
    rule = types_pb2.FanOut(rule=types_pb2.FAN_OUT_RULE_EXPLICIT, after_hit=[3, 1, 2, 1], after_miss=[1, 4, 0, 2])
    known = Laws(reference, SAMPLING[name])
    wire.open(rejecting(SAMPLING[name], scale, fan_out=rule), need=True)
    wire.run()
    made = proposal(wire.proposals[0], vocab_size=320)
    assert_drawn(PROMPT, made.ids, made.laws, known, (1, 4, 0), scale)
    for branch in wire.tables[-1].branches:
        before = (*PROMPT, *made.ids[: branch.accepted], branch.token)
        assert_drawn(before, branch.ids, branch.laws, known, (3, 1, 2), scale)


def test_draws_follow_the_law(loaded: LoadedModel, reference: Reference) -> None:
    sampling = {"temperature": 1.2, "top_k": 5}
    law, draws = Laws(reference, sampling).law(PROMPT), 1500
    engine = make_engine(loaded, blocks=4 * draws, max_sequences=draws)
    opens = [
        rejecting(sampling | {"seed": seed}, mode=types_pb2.MODE_SD, k=1).message(seed, need=True)
        for seed in range(draws)
    ]
    engine.handle(STREAM, draft_pb2.DraftServiceServeRequest(opens=opens))
    counts: Counter[int] = Counter()
    while engine.wake_at(0.0) is not None:
        for response in engine.step(0.0).values():
            counts.update(made.ids[0] for made in response.proposals)
    assert counts.total() == draws and set(counts) <= set(law)
    assert sum(abs(counts[token] / draws - p) for token, p in law.items()) / 2 < 0.05


@pytest.mark.parametrize("grown", [1, 2, 3])
def test_a_half_grown_branch_goes_on_with_its_laws(wire: Wire, reference: Reference, grown: int) -> None:
    known = Laws(reference, SAMPLING["plain"])
    wire.open(rejecting(SAMPLING["plain"], k=4))
    for _ in range(1 + grown):
        wire.step()
    sequence = wire.engine.live.get(STREAM, 1)
    assert sequence is not None and sequence.round.tree is not None
    token = sequence.round.tree.paths[2].token
    wire.advance(BASE, (token,), need=True)
    wire.run()
    made = proposal(wire.proposals[0], vocab_size=320)
    assert len(made.ids) == grown
    assert_drawn((*PROMPT, token), made.ids, made.laws, known)
    wire.advance(BASE + 1, made.ids[:1], need=True)
    wire.run()
    rest = proposal(wire.proposals[-1], vocab_size=320)
    assert_drawn((*PROMPT, token, made.ids[0]), rest.ids, rest.laws, known)
    for branch in wire.tables[-1].branches:
        before = (*PROMPT, token, made.ids[0], *wire.tables[-1].proposal[: branch.accepted], branch.token)
        assert_drawn(before, branch.ids, branch.laws, known)


def test_a_branch_goes_before_the_rest_of_the_proposal_however_long_they_are(wire: Wire, reference: Reference) -> None:
    """Both continue the same committed token here; which is taken must not hang on how far they got."""
    wire.open(rejecting(SAMPLING["few"], k=4, fan_out=1), need=True)
    while not wire.proposals:
        wire.step()
    wire.step()
    wire.step()
    sequence = wire.engine.live.get(STREAM, 1)
    assert sequence is not None and sequence.round.tree is not None and sequence.round.tree.depth == 1
    head, branch = sequence.round.head, sequence.round.tree.table().branches[1]
    assert branch.accepted == 1
    found = sequence.round.following((head.ids[0], branch.token), impartial=True)
    assert found.ids == branch.ids and len(found.ids) == 1
    assert sequence.round.following(head.ids[:2], impartial=True).ids == head.ids[2:]


def test_a_row_that_cannot_be_drawn_from_refuses_its_own_sequence_only(wire: Wire, reference: Reference) -> None:
    known = Laws(reference, SAMPLING["plain"])
    wire.open(rejecting(SAMPLING["plain"]), 1, need=True)
    wire.open(rejecting({"temperature": 1.0, "repetition_penalty": 5e-324}), 2, need=True)
    wire.open(Request(PROMPT, {"temperature": 1.0}, k=3), 3, need=True)
    wire.run()
    assert [refused.sequence for refused in wire.refused] == [2]
    made = {message.sequence: proposal(message, vocab_size=320) for message in wire.proposals}
    assert_drawn(PROMPT, made[1].ids, made[1].laws, known)
    assert made[3].ids == reference.continuation(Request(PROMPT, {"temperature": 1.0}, k=3), PROMPT, 3)
    assert made[3].laws == ()


def test_only_verified_proposals_teach_under_rejection(wire: Wire) -> None:
    wire.open(rejecting(SAMPLING["plain"], k=2))
    wire.run()
    statistics = wire.engine.experience.workloads[True]
    wire.advance(BASE, (wire.tables[-1].branches[0].token,), depth=2)
    wire.run()
    assert (statistics.snapshot().rounds, statistics.acceptance) == (1.0, statistics.settings.acceptance)
    head = wire.tables[-1].proposal
    wire.advance(BASE + 1, (head[0], (head[1] + 1) % 300), need=True)
    assert statistics.snapshot().rounds > 1.9
    wire.run()
    seen = statistics.snapshot().rounds
    wire.advance(BASE + 3, ((wire.proposals[-1].ids[0] + 1) % 300,), need=True)
    assert statistics.snapshot().rounds == seen, "whether that proposal came in time is not known"
    assert wire.engine.experience.workloads[False].snapshot().rounds == 0.0


def test_rejection_laws_leave_out_forbidden_and_unknown_ids(loaded: LoadedModel) -> None:
    wire = Wire(make_engine(loaded))
    forbidden = list(range(0, 320, 2))
    request = rejecting({"temperature": 1.5}, limits={"max_tokens": 50, "min_tokens": 40, "stop_ids": forbidden})
    wire.open(request, need=True)
    wire.run()
    laws = [law for branch in wire.tables[-1].branches for law in branch.laws]
    assert laws and not any(token % 2 == 0 for law in laws for token in law.ids)
    assert torch.tensor([len(law.ids) for law in laws]).max() == SIZE


def test_what_is_left_of_a_foreign_proposal_grows_on_with_point_masses(wire: Wire, reference: Reference) -> None:
    # The target looked a proposal up and then verified none of it; its first token came true all the same. What is left
    # is known to the draft, and no law ever came with it.
    sampling = SAMPLING["greedy"]
    wire.open(rejecting(sampling, k=4))
    wire.run()
    foreign = reference.continuation(Request(PROMPT, sampling), (*PROMPT, 10), 4)
    wire.advance(BASE, (10,), depth=4, in_flight=foreign, next_source=types_pb2.PROPOSAL_SOURCE_NGRAM)
    wire.run()
    wire.advance(BASE + 1, foreign[:1])
    wire.run()
    branches = [branch for branch in wire.tables[-1].branches if branch.token == foreign[1]]
    assert len(branches) == 1 and branches[0].ids[:2] == foreign[2:]
    assert len(branches[0].laws) == len(branches[0].ids) > 2
    assert [law.ids for law in branches[0].laws[:2]] == [(token,) for token in foreign[2:]]
