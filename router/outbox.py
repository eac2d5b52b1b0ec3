"""What is to be said to one peer, until the next flush puts it into one message."""

from __future__ import annotations

from dataclasses import dataclass, field

from protos.ssd.v1 import draft_pb2, target_pb2, types_pb2


@dataclass(slots=True)
class TargetBox:
    """For a target. `sequences`: those that live there, which is also its load. `number`: its name for drafts."""

    max_k: int
    number: int
    sequences: set[int] = field(default_factory=set)
    opens: dict[int, target_pb2.TargetOpen] = field(default_factory=dict)
    tables: list[types_pb2.OutcomeTable] = field(default_factory=list)
    proposals: list[types_pb2.Proposal] = field(default_factory=list)
    drafting: dict[int, target_pb2.SetDrafting] = field(default_factory=dict)
    closes: list[int] = field(default_factory=list)
    planes: list[types_pb2.PlaneOrder] = field(default_factory=list)
    plane_closes: list[int] = field(default_factory=list)

    def close(self, sequence: int, *, ended: bool) -> None:
        """Give a sequence up. ended: the target said so itself and needs not be told."""
        self.sequences.discard(sequence)
        self.drafting.pop(sequence, None)
        # An open that never left needs no close; one message with both would leave their order open.
        if self.opens.pop(sequence, None) is None and not ended:
            self.closes.append(sequence)

    def take(self) -> target_pb2.TargetServiceServeRequest | None:
        """The message, or None when there is nothing to say."""
        said = self.opens or self.tables or self.proposals or self.drafting or self.closes
        if not (said or self.planes or self.plane_closes):
            return None
        message = target_pb2.TargetServiceServeRequest(
            opens=self.opens.values(),
            tables=self.tables,
            proposals=self.proposals,
            drafting=self.drafting.values(),
            closes=self.closes,
            planes=self.planes,
            plane_closes=self.plane_closes,
        )
        self.planes, self.plane_closes = [], []
        self.opens, self.tables, self.proposals, self.drafting, self.closes = {}, [], [], {}, []
        return message


@dataclass(slots=True)
class DraftBox:
    """For a draft."""

    max_k: int
    sequences: set[int] = field(default_factory=set)
    opens: dict[int, draft_pb2.DraftOpen] = field(default_factory=dict)
    advances: list[draft_pb2.Advance] = field(default_factory=list)
    resyncs: list[draft_pb2.Resync] = field(default_factory=list)
    closes: list[int] = field(default_factory=list)
    planes: list[types_pb2.PlaneOrder] = field(default_factory=list)
    plane_closes: list[int] = field(default_factory=list)

    def close(self, sequence: int, *, ended: bool) -> None:
        """Give a sequence up. ended: the draft said so itself."""
        self.sequences.discard(sequence)
        if self.opens.pop(sequence, None) is None and not ended:
            self.closes.append(sequence)

    def take(self) -> draft_pb2.DraftServiceServeRequest | None:
        """The message, or None when there is nothing to say."""
        said = self.opens or self.advances or self.resyncs or self.closes
        if not (said or self.planes or self.plane_closes):
            return None
        message = draft_pb2.DraftServiceServeRequest(
            opens=self.opens.values(),
            advances=self.advances,
            resyncs=self.resyncs,
            closes=self.closes,
            planes=self.planes,
            plane_closes=self.plane_closes,
        )
        self.planes, self.plane_closes = [], []
        self.opens, self.advances, self.resyncs, self.closes = {}, [], [], []
        return message
