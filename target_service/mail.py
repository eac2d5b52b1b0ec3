"""What a target says of a round."""

from __future__ import annotations

from collections.abc import Sequence

from protos.ssd.v1 import target_pb2, types_pb2
from ssd.proto_convert import finish_reason, proposal_source, token_logprobs
from ssd.speculation.finish import Cut
from ssd.speculation.params import Draw
from ssd.speculation.proposal import Proposal
from target_service.sequence import LiveSequence


def step_outcome(
    sequence: LiveSequence, base_len: int, proposal: Proposal, accepted: int, emitted: Sequence[Draw], end: Cut
) -> target_pb2.StepOutcome:
    """The outcome of the round that began at base_len; what is in flight after it is added by the engine."""
    first = sequence.rounds == 0
    sequence.rounds += 1
    return target_pb2.StepOutcome(
        sequence=sequence.id,
        base_len=base_len,
        proposed=len(proposal.ids),
        accepted=accepted,
        ids=[one.id for one in emitted],
        logprobs=token_logprobs(emitted),
        finish=finish_reason(end.reason),
        stop_id=end.stop_id or 0,
        cached_tokens=(sequence.cached_tokens or 0) if first else 0,
        source=source_of(proposal),
    )


def source_of(proposal: Proposal) -> types_pb2.ProposalSource:
    """Where a proposal came from; unspecified when there is none."""
    return proposal_source(proposal.source) if proposal.ids else types_pb2.PROPOSAL_SOURCE_UNSPECIFIED
