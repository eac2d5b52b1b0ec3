"""What a draft has to say at the end of a step."""

from __future__ import annotations

from protos.ssd.v1 import draft_pb2
from ssd.proto_convert import SendLaws, outcome_table_message, proposal_message
from ssd.rpc.mail import Mail
from ssd.speculation.outcomes import OutcomeTable
from ssd.speculation.proposal import Proposal
from ssd.tensor_plane.planes import LawSender
from ssd.tensor_plane.sending import Outgoing


class DraftMail(Mail[draft_pb2.DraftServiceServeResponse]):
    """Responses being written, by stream. Laws go over the plane to the sequence's target, where one is open."""

    def __init__(self, planes: LawSender) -> None:
        super().__init__(draft_pb2.DraftServiceServeResponse)
        self._planes = planes
        self._bundles: dict[tuple[int, int], Outgoing | None] = {}  # by stream and target

    def propose(self, stream: int, sequence: int, proposal: Proposal, target: int = 0) -> None:
        send = self._way(stream, target) if proposal.laws else None
        self.to(stream).proposals.append(proposal_message(sequence, proposal, send))

    def anticipate(self, stream: int, sequence: int, table: OutcomeTable, target: int = 0) -> None:
        send = self._way(stream, target) if any(branch.laws for branch in table.branches) else None
        self.to(stream).tables.append(outcome_table_message(sequence, table, send))

    def collect(self) -> dict[int, draft_pb2.DraftServiceServeResponse]:
        """All messages; their laws leave before them."""
        for stream, report in self._planes.reports():
            self.to(stream).planes.append(report)
        for bundle in self._bundles.values():
            if bundle is not None:
                bundle.post()
        self._bundles.clear()
        return super().collect()

    def discard(self, stream: int) -> None:
        """Nobody is left to read it."""
        super().discard(stream)
        self._bundles = {key: bundle for key, bundle in self._bundles.items() if key[0] != stream}

    def time(self, timing: draft_pb2.DraftTiming) -> None:
        """Add the timing to every message that goes out anyhow."""
        for response in self._responses.values():
            response.timing.CopyFrom(timing)

    def ask_resync(self, stream: int, sequence: int, have_len: int) -> None:
        """Once a message: one gap shows in every advance after it."""
        asked = self.to(stream).need_resync
        if all(other.sequence != sequence for other in asked):
            asked.append(draft_pb2.NeedResync(sequence=sequence, have_len=have_len))

    def _way(self, stream: int, target: int) -> SendLaws | None:
        """One bundle for each target and message; None where laws go into the message."""
        key = stream, target
        if key not in self._bundles:
            self._bundles[key] = self._planes.bundle(stream, target)
        bundle = self._bundles[key]
        return bundle.refer if bundle is not None else None
