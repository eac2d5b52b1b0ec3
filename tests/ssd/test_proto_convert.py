"""Protos to core types: requests are checked, predictions are cleaned."""

import subprocess
import sys

import pytest
from google.protobuf.descriptor import FieldDescriptor

from protos.ssd.v1 import types_pb2
from ssd import proto_convert
from ssd.errors import FieldError
from ssd.speculation.finish import FinishReason
from ssd.speculation.law import LawRef, SparseLaw
from ssd.speculation.outcomes import Branch, OutcomeTable
from ssd.speculation.params import Draw, SamplingParams
from ssd.speculation.proposal import Proposal, Source

VOCAB = 50


def test_absent_fields_have_the_documented_defaults():
    assert proto_convert.sampling_params(types_pb2.SamplingParameters(), vocab_size=VOCAB) == SamplingParams()


def test_every_field_is_carried_over():
    values = {"temperature": 0.5, "top_p": 0.25, "top_k": 3, "min_p": 0.125, "repetition_penalty": 1.5}
    values |= {"presence_penalty": -1.0, "frequency_penalty": 2.0, "seed": 2**64 - 1}
    message = types_pb2.SamplingParameters(**values, logit_bias={9: 1.0, 2: -100.0})
    assert {field.name for field, _ in message.ListFields()} == {f.name for f in message.DESCRIPTOR.fields}
    params = proto_convert.sampling_params(message, vocab_size=VOCAB, logprobs=4, min_tokens=2)
    assert params == SamplingParams(**values, logit_bias=((2, -100.0), (9, 1.0)), logprobs=4, min_tokens=2)


def test_zero_is_a_value_and_not_an_absence():
    message = types_pb2.SamplingParameters(temperature=0.0)
    assert proto_convert.sampling_params(message, vocab_size=VOCAB).temperature == 0.0
    with pytest.raises(FieldError, match="top_p"):
        proto_convert.sampling_params(types_pb2.SamplingParameters(top_p=0.0), vocab_size=VOCAB)


def test_stop_rules_are_carried_over():
    message = types_pb2.TokenLimits(max_tokens=9, min_tokens=2, ignore_eos=True, stop_ids=[4, 4, 5])
    rules = proto_convert.stop_rules(message, eos_ids=(1, 2), vocab_size=VOCAB, prompt_len=3, max_len=10)
    assert (rules.limit, rules.min_tokens, rules.ending_ids) == (7, 2, {4, 5})
    message.ignore_eos = False
    assert proto_convert.stop_rules(message, eos_ids=(1, 2), vocab_size=VOCAB).ending_ids == {1, 2, 4, 5}


def test_predictions_lose_what_makes_no_sense_and_keep_the_rest():
    made = proto_convert.proposal(types_pb2.Proposal(base_len=3, ids=[1, 2, VOCAB, 4]), vocab_size=VOCAB)
    assert made == Proposal(3, (1, 2))
    message = types_pb2.OutcomeTable(base_len=3, proposal=[1, VOCAB, 2])
    message.branches.add(accepted=0, id=5, ids=[6, VOCAB, 7])
    message.branches.add(accepted=2, id=5, ids=[6])
    message.branches.add(accepted=1, id=VOCAB, ids=[6])
    message.branches.add(accepted=1, id=8, ids=[])
    table = proto_convert.outcome_table(message, vocab_size=VOCAB)
    assert table == OutcomeTable(3, (1,), 1, (Branch(0, 5, (6,)), Branch(1, 8)))


def test_predictions_survive_the_wire():
    table = OutcomeTable(3, (1, 2), 2, (Branch(0, 5, (6, 7)), Branch(2, 8)))
    message = proto_convert.outcome_table_message(77, table)
    assert message.sequence == 77
    assert proto_convert.outcome_table(message, vocab_size=VOCAB) == table
    made = Proposal(4, (1, 2))
    assert proto_convert.proposal(proto_convert.proposal_message(77, made), vocab_size=VOCAB) == made


def test_every_finish_reason_has_a_number():
    numbers = [proto_convert.finish_reason(reason) for reason in (None, *FinishReason)]
    assert len(set(numbers)) == len(numbers)


def test_logprobs_are_given_only_where_they_were_asked_for():
    (one,) = proto_convert.token_logprobs([Draw(3, -0.5, 1, ((3, -0.5), (4, -2.0)))])
    assert (one.id, one.logprob, one.rank, [top.id for top in one.top]) == (3, -0.5, 1, [3, 4])
    assert proto_convert.token_logprobs([Draw(3)]) == []


def test_all_scalar_sampling_fields_have_presence():
    for field in types_pb2.SamplingParameters.DESCRIPTOR.fields:
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            assert field.has_presence, field.name


def test_torch_is_not_imported():
    code = "import sys, ssd.proto_convert; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def wire_law(*ids: int, weights: tuple[float, ...] = ()) -> types_pb2.SparseLaw:
    return types_pb2.SparseLaw(ids=ids, weights=weights or [float(i + 1) for i in range(len(ids))])


def test_laws_ranks_and_sources_survive_the_wire():
    one, two = SparseLaw((1, 4), (0.25, 3.0)), SparseLaw((2,), (2.0**-100,))
    for source in Source:
        made = Proposal(3, (4, 2), (one, two), source)
        again = proto_convert.proposal(proto_convert.proposal_message(9, made), vocab_size=VOCAB)
        assert (again, again.source) == (made, source)
    table = OutcomeTable(3, (1,), 2, (Branch(0, 5, (1, 2), (one, two), rank=2), Branch(1, 8, (3,))))
    again = proto_convert.outcome_table(proto_convert.outcome_table_message(9, table), vocab_size=VOCAB)
    assert again == table


@pytest.mark.parametrize(
    "bad",
    [
        types_pb2.SparseLaw(),
        wire_law(1, 3),  # without the token
        wire_law(3, 2),  # not ascending
        wire_law(2, 2),
        wire_law(2, weights=(0.0,)),
        wire_law(2, weights=(-1.0,)),
        wire_law(2, weights=(float("nan"),)),
        wire_law(2, weights=(float("inf"),)),
        wire_law(2, weights=(1.0, 1.0)),
        wire_law(VOCAB),
    ],
)
def test_a_token_with_a_bad_law_and_all_behind_it_are_left_out(bad):
    laws = [wire_law(1, 7), bad, wire_law(3)]
    made = proto_convert.proposal(types_pb2.Proposal(base_len=3, ids=[1, 2, 3], laws=laws), vocab_size=VOCAB)
    assert made == Proposal(3, (1,), (SparseLaw((1, 7), (1.0, 2.0)),))
    message = types_pb2.OutcomeTable(base_len=3)
    message.branches.add(accepted=0, id=5, ids=[1, 2, 3], laws=laws)
    (branch,) = proto_convert.outcome_table(message, vocab_size=VOCAB).branches
    assert branch == Branch(0, 5, made.ids, made.laws)


def test_tokens_beyond_the_last_law_are_left_out_and_laws_beyond_the_last_token_too():
    message = types_pb2.Proposal(ids=[1, 2], laws=[wire_law(1)])
    assert proto_convert.proposal(message, vocab_size=VOCAB).ids == (1,)
    message = types_pb2.Proposal(ids=[1], laws=[wire_law(1), wire_law(2)])
    assert len(proto_convert.proposal(message, vocab_size=VOCAB).laws) == 1


def test_a_law_loses_the_ids_that_the_model_does_not_know():
    message = types_pb2.Proposal(ids=[1], laws=[wire_law(1, 4, VOCAB, VOCAB + 7)])
    (law,) = proto_convert.proposal(message, vocab_size=VOCAB).laws
    assert law == SparseLaw((1, 4), (1.0, 2.0))


def test_references_travel_in_spans_and_mix_with_inline_laws():
    here = SparseLaw((3, 5), (0.5, 0.25))
    far = [LawRef(2, 7, row) for row in (4, 5, 6)]
    mixed = Proposal(9, (3, 1, 1, 3, 1), (here, far[0], far[1], here, far[2]))
    message = proto_convert.proposal_message(1, mixed)
    spans = [(span.plane, span.bundle, span.row, span.count) for span in message.law_spans]
    assert spans == [(0, 0, 0, 1), (2, 7, 4, 2), (0, 0, 0, 1), (2, 7, 6, 1)]
    assert proto_convert.proposal(message, vocab_size=10) == mixed
    table = OutcomeTable(9, (), 3, (Branch(0, 2, (1, 1, 1), tuple(far), 1), Branch(0, 4, (3,), (here,), 2)))
    assert proto_convert.outcome_table(proto_convert.outcome_table_message(1, table), vocab_size=10) == table


@pytest.mark.parametrize(
    ("spans", "laws"),
    [
        ([(2, 7, 0, 2**32 - 1)], [LawRef(2, 7, row) for row in range(3)]),
        ([(2, 7, 2**32 - 1, 2)], [LawRef(2, 7, 2**32 - 1)]),
        ([(2, 7, 0, 1), (0, 0, 0, 5), (2, 8, 0, 1)], [LawRef(2, 7, 0)]),
        ([(2, 7, 2**32 - 1, 2), (2, 8, 0, 1)], [LawRef(2, 7, 2**32 - 1)]),
        ([(0, 0, 0, 1)], []),
        ([(2, 7, 0, 0)], []),
    ],
)
def test_spans_that_promise_more_or_less_than_there_is_cut_the_proposal(spans, laws):
    message = types_pb2.Proposal(base_len=4, ids=[1, 2, 3])
    for plane, bundle, row, count in spans:
        message.law_spans.add(plane=plane, bundle=bundle, row=row, count=count)
    made = proto_convert.proposal(message, vocab_size=10)
    assert list(made.laws) == laws and made.ids == (1, 2, 3)[: len(laws)]
