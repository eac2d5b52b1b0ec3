"""Protos to the core's own types. Values of a request are checked; what a draft predicts is merely cleaned.

A request that cannot be honoured is refused by the name of its field. A proposal or table is only ever a guess, so the
parts of it that make no sense are left out and the rest is used. Free of torch, like everything the router imports.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from protos.ssd.v1 import types_pb2
from ssd.errors import FieldError
from ssd.speculation.finish import FinishReason, StopRules
from ssd.speculation.outcomes import Branch, OutcomeTable
from ssd.speculation.params import Draw, SamplingParams
from ssd.speculation.proposal import Proposal

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
    """A proposal, up to the first id that this model does not know (a draft's vocabulary may be padded further)."""
    return Proposal(message.base_len, _known(message.ids, vocab_size))


def outcome_table(message: types_pb2.OutcomeTable, *, vocab_size: int) -> OutcomeTable:
    """An outcome table without branches that cannot happen, each up to the first id that this model does not know."""
    in_flight = _known(message.proposal, vocab_size)
    branches = tuple(
        Branch(branch.accepted, branch.id, _known(branch.ids, vocab_size))
        for branch in message.branches
        if branch.accepted <= len(in_flight) and branch.id < vocab_size
    )
    depth = max((len(branch.ids) for branch in branches), default=0)
    return OutcomeTable(message.base_len, in_flight, depth, branches)


def proposal_message(sequence: int, made: Proposal) -> types_pb2.Proposal:
    """A proposal as it travels."""
    return types_pb2.Proposal(sequence=sequence, base_len=made.base_len, ids=made.ids)


def outcome_table_message(sequence: int, table: OutcomeTable) -> types_pb2.OutcomeTable:
    """An outcome table as it travels."""
    branches = [types_pb2.Branch(accepted=b.accepted, id=b.token, ids=b.ids) for b in table.branches]
    return types_pb2.OutcomeTable(
        sequence=sequence, base_len=table.base_len, proposal=table.proposal, branches=branches
    )


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
