"""Which target and which draft serve a sequence, and what is still to be said to them."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping

from protos.ssd.v1 import draft_pb2, target_pb2, types_pb2
from router.live import Link, Live
from router.outbox import DraftBox, TargetBox

PeerKey = Hashable
Outgoing = Mapping[PeerKey, target_pb2.TargetServiceServeRequest | draft_pb2.DraftServiceServeRequest]


class Placement:
    """Live sequences on connected peers: the least loaded one takes a new sequence, which then stays there."""

    def __init__(self) -> None:
        self._targets: dict[PeerKey, TargetBox] = {}
        self._drafts: dict[PeerKey, DraftBox] = {}
        self._numbers = itertools.count(1)

    def add_target(self, key: PeerKey, max_k: int) -> int:
        """Returns the number by which drafts know it."""
        self._targets[key] = TargetBox(max_k, next(self._numbers))
        return self._targets[key].number

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

    def find_target(self, live: Live) -> bool:
        """Open a sequence on a target; False when there is none to try."""
        free = {key: box for key, box in self._targets.items() if key not in live.refused_by}
        if not free:
            return False
        live.target = min(free, key=lambda key: len(free[key].sequences))
        box = self._targets[live.target]
        live.target_number = box.number
        box.sequences.add(live.sequence)
        box.opens[live.sequence] = live.target_open(box.max_k)
        return True

    def find_drafts(self, live: Live) -> None:
        """Open a sequence, with all that it has committed, on as many drafts as it wants and there are to try."""
        there = {link.key for link in live.links} | live.refused_by
        free = sorted((key for key in self._drafts if key not in there), key=self._drafted_at)
        added = [
            Link(key, self._drafts[key].max_k) for key in free[: max(0, live.plan.drafts_wanted - len(live.links))]
        ]
        live.links += added
        for link in added:
            box = self._drafts[link.key]
            box.sequences.add(live.sequence)
            box.opens[live.sequence] = live.draft_open(link)

    def rows(self, live: Live) -> tuple[int, int]:
        """Sequences that share this one's target, and those that share its first draft."""
        at_target = len(self._targets[live.target].sequences) if live.target is not None else 1
        return at_target, self._drafted_at(live.links[0].key) if live.links else 0

    def _drafted_at(self, key: PeerKey) -> int:
        return len(self._drafts[key].sequences)

    def leave_target(self, live: Live, *, ended: bool) -> None:
        """Give the sequence up at its target. ended: the target said so itself."""
        if live.target is not None:
            self._targets[live.target].close(live.sequence, ended=ended)
            live.target = None

    def leave_draft(self, live: Live, link: Link, *, ended: bool) -> None:
        """Give the sequence up at one of its drafts. ended: the draft said so itself."""
        self._drafts[link.key].close(live.sequence, ended=ended)
        live.links.remove(link)

    def tell_target(self, live: Live) -> None:
        """Let the target know whether waiting for a draft is worth while, and what to do after a miss."""
        drafting, fallback = live.draftable, live.wanted_fallback
        if (live.drafting, live.fallback) == (drafting, fallback):
            return
        news = fallback if fallback != live.fallback else types_pb2.FALLBACK_UNSPECIFIED
        live.drafting, live.fallback = drafting, fallback
        if live.target is None:
            return
        box = self._targets[live.target]
        known = box.opens.get(live.sequence) or box.drafting.setdefault(
            live.sequence, target_pb2.SetDrafting(sequence=live.sequence)
        )
        known.drafting, known.fallback = drafting, news or known.fallback

    def forward_tables(self, live: Live, tables: Iterable[types_pb2.OutcomeTable]) -> None:
        """To the read replica of the sequence's target."""
        if live.target is not None:
            self._targets[live.target].tables.extend(tables)

    def forward_proposal(self, live: Live, proposal: types_pb2.Proposal) -> None:
        """To the sequence's target."""
        if live.target is not None:
            self._targets[live.target].proposals.append(proposal)

    def order_plane(self, key: PeerKey, order: types_pb2.PlaneOrder) -> None:
        """Have one end of a tensor plane opened."""
        if (box := self._box(key)) is not None:
            box.planes.append(order)

    def close_plane(self, key: PeerKey, plane: int) -> None:
        """Have one given up."""
        if (box := self._box(key)) is not None:
            box.plane_closes.append(plane)

    def _box(self, key: PeerKey) -> TargetBox | DraftBox | None:
        return self._targets.get(key) or self._drafts.get(key)

    def tell_drafts(self, live: Live) -> None:
        """Let the drafts know what has happened since they were last told."""
        for link in live.links:
            box = self._drafts[link.key]
            if link.resync:
                box.resyncs.append(live.draft_resync(link))
            elif live.sequence in box.opens:
                if (
                    live.length > link.told_len or live.target_number != link.target
                ):  # not sent yet: let it begin at the present length
                    box.opens[live.sequence] = live.draft_open(link)
            elif (advance := live.draft_advance(link)) is not None:
                box.advances.append(advance)

    def take(self) -> Outgoing:
        """One message for each peer that is to hear something."""
        boxes: list[tuple[PeerKey, TargetBox | DraftBox]] = [*self._targets.items(), *self._drafts.items()]
        return {key: message for key, box in boxes if (message := box.take()) is not None}
