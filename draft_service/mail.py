"""What a step has to say: one message for each stream, whatever the number of its sequences."""

from __future__ import annotations

from enum import IntEnum

from protos.ssd.v1 import draft_pb2, types_pb2
from ssd.proto_convert import outcome_table_message, proposal_message
from ssd.speculation.outcomes import OutcomeTable
from ssd.speculation.proposal import Proposal

Response = draft_pb2.DraftServiceServeResponse


class Status(IntEnum):
    """The google.rpc.Code numbers of refusals."""

    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    OUT_OF_RANGE = 11


class Mail:
    """Responses being written, by stream."""

    def __init__(self) -> None:
        self._responses: dict[int, Response] = {}

    def __bool__(self) -> bool:
        return bool(self._responses)

    def to(self, stream: int) -> Response:
        """The message to a stream, to add to."""
        return self._responses.setdefault(stream, Response())

    def propose(self, stream: int, sequence: int, proposal: Proposal) -> None:
        self.to(stream).proposals.append(proposal_message(sequence, proposal))

    def anticipate(self, stream: int, sequence: int, table: OutcomeTable) -> None:
        self.to(stream).tables.append(outcome_table_message(sequence, table))

    def refuse(self, stream: int, sequence: int, status: Status, reason: str) -> None:
        self.to(stream).refused.append(types_pb2.Refused(sequence=sequence, status=status, message=reason))

    def ask_resync(self, stream: int, sequence: int, have_len: int) -> None:
        """Once a message: one gap shows in every advance after it."""
        asked = self.to(stream).need_resync
        if all(other.sequence != sequence for other in asked):
            asked.append(draft_pb2.NeedResync(sequence=sequence, have_len=have_len))

    def discard(self, stream: int) -> None:
        """Nobody is left to read it."""
        self._responses.pop(stream, None)

    def collect(self) -> dict[int, Response]:
        """All messages; the next ones start empty."""
        responses, self._responses = self._responses, {}
        return responses
