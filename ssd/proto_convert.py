"""Protos to the core's own types. Values of a request are checked; what a draft predicts is merely cleaned.

A request that cannot be honoured is refused by the name of its field. A proposal or table is only ever a guess, so the
parts of it that make no sense are left out and the rest is used. Free of torch, like everything the router imports.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from protos.ssd.v1 import types_pb2
from ssd.errors import FieldError
from ssd.speculation.finish import FinishReason, StopRules
from ssd.speculation.law import Law, LawRef, Laws, SparseLaw, drawable
from ssd.speculation.outcomes import Branch, OutcomeTable
from ssd.speculation.params import Draw, SamplingParams
from ssd.speculation.proposal import Proposal, Source

_ROWS = 1 << 32  # that a span can name

SendLaws = Callable[[Laws], Laws]

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
    ids, laws = _drafted(message, vocab_size)
    return Proposal(message.base_len, ids, laws, _SOURCES_BACK.get(message.source, Source.PROPOSAL))


def outcome_table(message: types_pb2.OutcomeTable, *, vocab_size: int) -> OutcomeTable:
    """An outcome table without branches that cannot happen, each cut like a proposal."""
    in_flight = _known(message.proposal, vocab_size)
    branches = tuple(
        Branch(branch.accepted, branch.id, *_drafted(branch, vocab_size), branch.rank)
        for branch in message.branches
        if branch.accepted <= len(in_flight) and branch.id < vocab_size
    )
    depth = max((len(branch.ids) for branch in branches), default=0)
    return OutcomeTable(message.base_len, in_flight, depth, branches)


def proposal_message(sequence: int, made: Proposal, send: SendLaws | None = None) -> types_pb2.Proposal:
    """A proposal as it travels. `send`: puts laws on their own way and gives what stands for them here."""
    # A just-in-time proposal is what an absent source means.
    source = _SOURCES[made.source] if made.source is not Source.PROPOSAL else types_pb2.PROPOSAL_SOURCE_UNSPECIFIED
    laws = _law_fields(made.laws if send is None else send(made.laws))
    return types_pb2.Proposal(sequence=sequence, base_len=made.base_len, ids=made.ids, source=source, **laws)


def outcome_table_message(sequence: int, table: OutcomeTable, send: SendLaws | None = None) -> types_pb2.OutcomeTable:
    """An outcome table as it travels; `send` as for a proposal."""
    branches = [
        types_pb2.Branch(
            accepted=b.accepted,
            id=b.token,
            ids=b.ids,
            rank=b.rank,
            **_law_fields(b.laws if send is None else send(b.laws)),
        )
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


def _drafted(message: types_pb2.Proposal | types_pb2.Branch, vocab_size: int) -> tuple[tuple[int, ...], Laws]:
    """The ids that can be used, and their laws if there are any."""
    known = _known(message.ids, vocab_size)
    if not message.laws and not message.law_spans:
        return known, ()
    return drawable(known, _laws(message, len(known)), vocab_size)


def _laws(message: types_pb2.Proposal | types_pb2.Branch, most: int) -> Iterator[Law | None]:
    """At most `most` laws, in order; None for one that makes no sense."""
    inline = map(_law, message.laws)
    if not message.law_spans:
        return inline
    parts = (_span(span, inline, most) for span in message.law_spans)
    return itertools.islice(itertools.chain.from_iterable(parts), most)


def _span(span: types_pb2.LawSpan, inline: Iterator[Law | None], most: int) -> Iterable[Law | None]:
    count = min(span.count, most)
    if not span.plane:
        # A span that promises more than there is must not shift what stands behind it to other tokens.
        return itertools.islice(itertools.chain(inline, itertools.repeat(None)), count)
    rows = range(span.row, span.row + count)
    return (LawRef(span.plane, span.bundle, row) if row < _ROWS else None for row in rows)


def _law(message: types_pb2.SparseLaw) -> SparseLaw | None:
    try:
        return SparseLaw(tuple(message.ids), tuple(message.weights))
    except ValueError:
        return None


def _law_fields(laws: Laws) -> dict[str, Any]:
    """The fields `laws` and `law_spans` of a message. Without references there are no spans."""
    here = [types_pb2.SparseLaw(ids=law.ids, weights=law.weights) for law in laws if isinstance(law, SparseLaw)]
    if len(here) == len(laws):
        return {"laws": here}
    spans: list[types_pb2.LawSpan] = []
    for law in laws:
        plane, bundle, row = (law.plane, law.bundle, law.row) if isinstance(law, LawRef) else (0, 0, 0)
        last = spans[-1] if spans else None
        follows = last is not None and (last.plane, last.bundle) == (plane, bundle)
        if last is not None and follows and (not plane or last.row + last.count == row):
            last.count += 1
        else:
            spans.append(types_pb2.LawSpan(plane=plane, bundle=bundle, row=row, count=1))
    return {"laws": here, "law_spans": spans}
