"""Which target and which draft serve a sequence, and what is still to be said to them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from protos.ssd.v1 import draft_pb2, target_pb2, types_pb2
from router.live import Live
from router.outbox import DraftBox, TargetBox

PeerKey = Hashable
Outgoing = Mapping[PeerKey, target_pb2.TargetServiceServeRequest | draft_pb2.DraftServiceServeRequest]


class Placement:
    """Live sequences on connected peers: the least loaded one takes a new sequence, which then stays there."""

    def __init__(self) -> None:
        self._targets: dict[PeerKey, TargetBox] = {}
        self._drafts: dict[PeerKey, DraftBox] = {}

    def add_target(self, key: PeerKey, max_k: int) -> None:
        self._targets[key] = TargetBox(max_k)

    def add_draft(self, key: PeerKey, max_k: int) -> None:
        self._drafts[key] = DraftBox(max_k)

    def remove_target(self, key: PeerKey) -> list[int]:
        """The sequences that were there, in order of their opening."""
        box = self._targets.pop(key, None)
        return sorted(box.sequences) if box else []

    def remove_draft(self, key: PeerKey) -> list[int]:
        """The sequences that were there, in order of their opening."""
        box = self._drafts.pop(key, None)
        return sorted(box.sequences) if box else []

    def find_target(self, live: Live, tables: Sequence[types_pb2.OutcomeTable]) -> bool:
        """Open a sequence on a target; False when there is none to try. `tables`: already anticipated."""
        free = {key: box for key, box in self._targets.items() if key not in live.refused_by}
        if not free:
            return False
        live.target = min(free, key=lambda key: len(free[key].sequences))
        box = self._targets[live.target]
        box.sequences.add(live.sequence)
        box.opens[live.sequence] = live.target_open(box.max_k)
        box.tables.extend(tables)
        return True

    def find_draft(self, live: Live) -> bool:
        """Open a sequence on a draft with all that it has committed; False when there is none to try."""
        free = {key: box for key, box in self._drafts.items() if key not in live.refused_by}
        if not free or not live.plan.speculative:
            return False
        live.draft = min(free, key=lambda key: len(free[key].sequences))
        box = self._drafts[live.draft]
        box.sequences.add(live.sequence)
        box.opens[live.sequence] = live.draft_open(box.max_k)
        return True

    def leave_target(self, live: Live, *, ended: bool) -> None:
        """Give the sequence up at its target. ended: the target said so itself."""
        if live.target is not None:
            self._targets[live.target].close(live.sequence, ended=ended)
            live.target = None

    def leave_draft(self, live: Live, *, ended: bool) -> None:
        """Give the sequence up at its draft. ended: the draft said so itself."""
        if live.draft is not None:
            self._drafts[live.draft].close(live.sequence, ended=ended)
            live.draft = None

    def set_drafting(self, live: Live, drafting: bool) -> None:
        """Let the target know whether waiting for a draft is worth while."""
        if live.drafting == drafting:
            return
        live.drafting = drafting
        if live.target is None:
            return
        box = self._targets[live.target]
        if live.sequence in box.opens:
            box.opens[live.sequence].drafting = drafting
        else:
            box.drafting[live.sequence] = drafting

    def forward_table(self, live: Live, table: types_pb2.OutcomeTable) -> None:
        """To the read replica of the sequence's target."""
        if live.target is not None:
            self._targets[live.target].tables.append(table)

    def forward_proposal(self, live: Live, proposal: types_pb2.Proposal) -> None:
        """To the sequence's target."""
        if live.target is not None:
            self._targets[live.target].proposals.append(proposal)

    def tell_draft(self, live: Live) -> None:
        """Let the draft know what has been committed since it was last told."""
        if live.draft is None:
            return
        box = self._drafts[live.draft]
        if live.resync:
            box.resyncs.append(live.draft_resync())
        elif live.length > live.told_len:
            if live.sequence in box.opens:  # not sent yet: let it begin at the present length
                box.opens[live.sequence] = live.draft_open(box.max_k)
            else:
                box.advances.append(live.draft_advance())

    def take(self) -> Outgoing:
        """One message for each peer that is to hear something."""
        boxes: list[tuple[PeerKey, TargetBox | DraftBox]] = [*self._targets.items(), *self._drafts.items()]
        return {key: message for key, box in boxes if (message := box.take()) is not None}
