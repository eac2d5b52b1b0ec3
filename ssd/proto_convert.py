"""Protos to the core's own types. Values of a request are checked; what a draft predicts is merely cleaned.

A request that cannot be honoured is refused by the name of its field. A proposal or table is only ever a guess, so the
parts of it that make no sense are left out and the rest is used. Free of torch, like everything the router imports.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence

from protos.ssd.v1 import types_pb2
from ssd.errors import FieldError
from ssd.speculation.finish import FinishReason, StopRules
from ssd.speculation.law import Laws, SparseLaw
from ssd.speculation.outcomes import Branch, OutcomeTable
from ssd.speculation.params import Draw, SamplingParams
from ssd.speculation.proposal import Proposal, Source

_SCALARS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)

_FINISH = {
    FinishReason.STOP: types_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: types_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: types_pb2.FINISH_REASON_CANCELLED,
}

_SOURCES = {
    Source.TABLE: types_pb2.PROPOSAL_SOURCE_TABLE,
    Source.PROPOSAL: types_pb2.PROPOSAL_SOURCE_JIT,
    Source.NGRAM: types_pb2.PROPOSAL_SOURCE_NGRAM,
}
_SOURCES_BACK = {number: source for source, number in _SOURCES.items()}


def sampling_params(
    message: types_pb2.SamplingParameters, *, vocab_size: int, logprobs: int = -1, min_tokens: int = 0
) -> SamplingParams:
    """Sampling parameters with the defaults of absent fields; FieldError for a value that cannot be honoured."""
    given = {name: getattr(message, name) for name in _SCALARS if message.HasField(name)}
    bias = tuple(sorted(message.logit_bias.items()))
    params = SamplingParams(**given, logit_bias=bias, logprobs=logprobs, min_tokens=min_tokens)
    params.validate(vocab_size)
    return params


def stop_rules(
    message: types_pb2.TokenLimits,
    *,
    eos_ids: Collection[int],
    vocab_size: int,
    prompt_len: int = 0,
    max_len: int | None = None,
) -> StopRules:
    """Stop rules of a request; FieldError for a value that cannot be honoured.

    eos_ids   the model's own end-of-sequence ids
    max_len   context length, tokens of prompt and output
    """
    if message.max_tokens < 1:
        raise FieldError("max_tokens", "must be at least 1")
    if message.min_tokens > message.max_tokens:
        raise FieldError("min_tokens", f"is {message.min_tokens}, above max_tokens = {message.max_tokens}")
    for token in message.stop_ids:
        if token >= vocab_size:
            raise FieldError("stop_ids", f"token id {token} is outside the vocabulary of {vocab_size} tokens")
    rules = StopRules(
        eos_ids=frozenset(eos_ids),
        stop_ids=frozenset(message.stop_ids),
        ignore_eos=message.ignore_eos,
        min_tokens=message.min_tokens,
        max_tokens=message.max_tokens,
        max_len=max_len,
        prompt_len=prompt_len,
    )
    if rules.min_tokens > 0 and len(rules.ending_ids) >= vocab_size:
        raise FieldError("stop_ids", "hold the whole vocabulary, so that min_tokens leaves no token to draw")
    return rules


def proposal(message: types_pb2.Proposal, *, vocab_size: int) -> Proposal:
    """A proposal, up to the first id that this model does not know (a draft's vocabulary may be padded further), or
    that cannot have been drawn from the law that came with it."""
    ids, laws = _drafted(message.ids, message.laws, vocab_size)
    return Proposal(message.base_len, ids, laws, _SOURCES_BACK.get(message.source, Source.PROPOSAL))


def outcome_table(message: types_pb2.OutcomeTable, *, vocab_size: int) -> OutcomeTable:
    """An outcome table without branches that cannot happen, each cut like a proposal."""
    in_flight = _known(message.proposal, vocab_size)
    branches = tuple(
        Branch(branch.accepted, branch.id, *_drafted(branch.ids, branch.laws, vocab_size), branch.rank)
        for branch in message.branches
        if branch.accepted <= len(in_flight) and branch.id < vocab_size
    )
    depth = max((len(branch.ids) for branch in branches), default=0)
    return OutcomeTable(message.base_len, in_flight, depth, branches)


def proposal_message(sequence: int, made: Proposal) -> types_pb2.Proposal:
    """A proposal as it travels."""
    laws = _law_messages(made.laws)
    # A just-in-time proposal is what an absent source means.
    source = _SOURCES[made.source] if made.source is not Source.PROPOSAL else types_pb2.PROPOSAL_SOURCE_UNSPECIFIED
    return types_pb2.Proposal(sequence=sequence, base_len=made.base_len, ids=made.ids, laws=laws, source=source)


def outcome_table_message(sequence: int, table: OutcomeTable) -> types_pb2.OutcomeTable:
    """An outcome table as it travels."""
    branches = [
        types_pb2.Branch(accepted=b.accepted, id=b.token, ids=b.ids, laws=_law_messages(b.laws), rank=b.rank)
        for b in table.branches
    ]
    return types_pb2.OutcomeTable(
        sequence=sequence, base_len=table.base_len, proposal=table.proposal, branches=branches
    )


def proposal_source(source: Source) -> types_pb2.ProposalSource:
    """Where a proposal came from, as it travels."""
    return _SOURCES[source]


def finish_reason(reason: FinishReason | None) -> types_pb2.FinishReason:
    """UNSPECIFIED while a sequence goes on."""
    return types_pb2.FINISH_REASON_UNSPECIFIED if reason is None else _FINISH[reason]


def token_logprobs(draws: Sequence[Draw]) -> list[types_pb2.TokenLogprob]:
    """Log-probabilities of drawn tokens; empty unless they were asked for."""
    return [
        types_pb2.TokenLogprob(
            id=draw.id,
            logprob=draw.logprob,
            rank=draw.rank,
            top=[types_pb2.TopLogprob(id=token, logprob=logprob) for token, logprob in draw.top],
        )
        for draw in draws
        if draw.logprob is not None and draw.rank is not None
    ]


def _known(ids: Iterable[int], vocab_size: int) -> tuple[int, ...]:
    known = []
    for token in ids:
        if token >= vocab_size:
            break
        known.append(token)
    return tuple(known)


def _drafted(ids: Sequence[int], laws: Sequence[types_pb2.SparseLaw], vocab_size: int) -> tuple[tuple[int, ...], Laws]:
    """The ids that can be used, and their laws if there are any.

    A token whose law is missing or broken, or does not contain it, is of no use, nor is what stands behind it: under a
    law that it was not drawn from it would bend the output's distribution.
    """
    known = _known(ids, vocab_size)
    if not laws:
        return known, ()
    good: list[SparseLaw] = []
    for token, message in zip(known, laws, strict=False):
        law = _law(message, vocab_size)
        if law is None or token not in law.ids:
            break
        good.append(law)
    return known[: len(good)], tuple(good)


def _law(message: types_pb2.SparseLaw, vocab_size: int) -> SparseLaw | None:
    """The law given that the token is one that this model knows; None if it makes no sense."""
    ids, weights = tuple(message.ids), tuple(message.weights)
    try:
        law = SparseLaw(ids, weights)
    except ValueError:
        return None
    count = bisect_left(ids, vocab_size)
    if count == len(ids):
        return law
    return SparseLaw(ids[:count], weights[:count]) if count else None


def _law_messages(laws: Laws) -> list[types_pb2.SparseLaw]:
    return [types_pb2.SparseLaw(ids=law.ids, weights=law.weights) for law in laws]
