"""What a step has to say: one message for each stream, whatever the number of its sequences."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from protos.ssd.v1 import target_pb2, types_pb2
from ssd.proto_convert import finish_reason, token_logprobs
from ssd.speculation.finish import Cut
from ssd.speculation.params import Draw
from target_service.sequence import LiveSequence

Response = target_pb2.TargetServiceServeResponse


class Status(IntEnum):
    """The google.rpc.Code numbers of refusals."""

    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    INTERNAL = 13


class Mail:
    """Responses being written, by stream."""

    def __init__(self) -> None:
        self._responses: dict[int, Response] = {}

    def __bool__(self) -> bool:
        return bool(self._responses)

    def to(self, stream: int) -> Response:
        """The message to a stream, to add to."""
        return self._responses.setdefault(stream, Response())

    def refuse(self, stream: int, sequence: int, status: Status, reason: str) -> None:
        self.to(stream).refused.append(types_pb2.Refused(sequence=sequence, status=status, message=reason))

    def discard(self, stream: int) -> None:
        """Nobody is left to read it."""
        self._responses.pop(stream, None)

    def collect(self) -> dict[int, Response]:
        """All messages; the next ones start empty."""
        responses, self._responses = self._responses, {}
        return responses


def step_outcome(
    sequence: LiveSequence, base_len: int, proposed: int, accepted: int, emitted: Sequence[Draw], end: Cut
) -> target_pb2.StepOutcome:
    """The outcome of the round that began at base_len; what is in flight after it is added by the engine."""
    first = sequence.rounds == 0
    sequence.rounds += 1
    return target_pb2.StepOutcome(
        sequence=sequence.id,
        base_len=base_len,
        proposed=proposed,
        accepted=accepted,
        ids=[one.id for one in emitted],
        logprobs=token_logprobs(emitted),
        finish=finish_reason(end.reason),
        stop_id=end.stop_id or 0,
        cached_tokens=(sequence.cached_tokens or 0) if first else 0,
    )
