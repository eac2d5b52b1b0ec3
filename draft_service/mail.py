"""What a draft has to say at the end of a step."""

from __future__ import annotations

from protos.ssd.v1 import draft_pb2
from ssd.proto_convert import outcome_table_message, proposal_message
from ssd.rpc.mail import Mail
from ssd.speculation.outcomes import OutcomeTable
from ssd.speculation.proposal import Proposal


class DraftMail(Mail[draft_pb2.DraftServiceServeResponse]):
    """Responses being written, by stream."""

    def __init__(self) -> None:
        super().__init__(draft_pb2.DraftServiceServeResponse)

    def propose(self, stream: int, sequence: int, proposal: Proposal) -> None:
        self.to(stream).proposals.append(proposal_message(sequence, proposal))

    def anticipate(self, stream: int, sequence: int, table: OutcomeTable) -> None:
        self.to(stream).tables.append(outcome_table_message(sequence, table))

    def time(self, timing: draft_pb2.DraftTiming) -> None:
        """Add the timing to every message that goes out anyhow."""
        for response in self._responses.values():
            response.timing.CopyFrom(timing)

    def ask_resync(self, stream: int, sequence: int, have_len: int) -> None:
        """Once a message: one gap shows in every advance after it."""
        asked = self.to(stream).need_resync
        if all(other.sequence != sequence for other in asked):
            asked.append(draft_pb2.NeedResync(sequence=sequence, have_len=have_len))
