"""One round of a sequence after another: what was predicted, against what came, and what is in flight next."""

from __future__ import annotations

from collections import Counter

from protos.ssd.v1 import target_pb2, types_pb2
from router.governing import Governing
from router.live import Link, Live
from router.placement import Placement
from router.planes import Planes
from router.predictions import ANY_ID, Predictions
from router.totals import Tally
from ssd.proto_convert import proposal, proposal_message
from ssd.speculation.proposal import Proposal, Source, rebase

# Bytes of one prediction. 64 branches of 16 tokens with laws of 64 pairs each are a quarter of it; unpacking what is
# much larger would hold up every other sequence.
LARGEST = 2 << 20


class Rounds:
    """Takes in outcomes and predictions of live sequences. `stale`: the coordinator's, to be added to."""

    def __init__(
        self,
        places: Placement,
        predictions: Predictions,
        governing: Governing,
        planes: Planes,
        stale: Counter[str],
    ) -> None:
        self.tally = Tally()
        self._places = places
        self._predictions = predictions
        self._governing = governing
        self._planes = planes
        self._stale = stale

    def commit(self, live: Live, outcome: target_pb2.StepOutcome) -> None:
        """Take in a round's outcome at the committed length, and see to the next round."""
        base_len, hit = live.length, None
        live.ids.extend(outcome.ids)
        live.next_depth, live.next_source, live.in_flight = outcome.next_depth, outcome.next_source, ()
        live.need_proposal = False
        if not outcome.finish and live.may_speculate:
            hit = outcome.hit if live.anticipates else None
            self._learn(live, outcome, base_len, hit)
            self._follow(live)
        live.totals.count(outcome, hit)
        self.tally.count(live.plan.mode, outcome, hit)
        if not outcome.finish:
            live.need_proposal = live.may_speculate and live.asks_after_miss and not live.next_depth

    def govern(self, live: Live) -> None:
        """Decide how a sequence in mode AUTO goes on. Its drafts hear of it with its next outcome."""
        self._governing.decide(live, self._places.rows(live))
        self._places.tell_target(live)

    def take_table(self, live: Live, link: Link, message: types_pb2.OutcomeTable) -> None:
        """A table from one of the sequence's drafts: into the cache, and on to the target."""
        if message.ByteSize() > LARGEST:
            self._stale["table oversize"] += 1
            return
        if not live.has_reached(message.base_len):
            self._stale["table ahead"] += 1
            return
        self._answers(live, link)
        if self._predictions.add_table(live, message, self._stale):
            self._places.forward_tables(live, [message])

    def take_proposal(self, live: Live, link: Link, message: types_pb2.Proposal) -> None:
        """A proposal from one of the sequence's drafts: what is left of it goes on to the target."""
        if message.ByteSize() > LARGEST:
            self._stale["proposal oversize"] += 1
            return
        if not live.has_reached(message.base_len):
            self._stale["proposal ahead"] += 1
            return
        if message.ids:
            self._answers(live, link)
        elif message.base_len == live.length:
            # None is an answer too: the target need not wait in this round.
            live.need_proposal = False
            self._places.forward_proposal(live, message)
            return
        made = rebase(proposal(message, vocab_size=ANY_ID), live.length, live.ids[message.base_len :])
        if made is None:
            self._stale["proposal stale"] += 1
            return
        if message.base_len < live.length and live.need_proposal:
            # Another one is asked for; this is for a step that begins before that comes.
            self._places.forward_proposal(live, message)
            return
        self._predictions.add_proposal(live.sequence, made)
        self._places.forward_proposal(live, proposal_message(live.sequence, made))
        if not live.next_depth:
            live.put_in_flight(made.ids, types_pb2.PROPOSAL_SOURCE_JIT)
            link.in_flight = live.in_flight

    def _learn(self, live: Live, outcome: target_pb2.StepOutcome, base_len: int, hit: bool | None) -> None:
        """Note how the round went: acceptances, and the rank of the target's own token."""
        rank, listed = outcome.hit_rank or None, None
        if hit is False:
            rank, listed = self._predictions.judged(live, base_len, len(outcome.ids) - 1)
        self._governing.observe(live, outcome, rank, listed)

    def _follow(self, live: Live) -> None:
        """Find out which proposal is now in flight, where that matters; or find one if there is none."""
        if live.next_source == types_pb2.PROPOSAL_SOURCE_NGRAM:
            live.in_flight = live.looked_up(live.next_depth)
        elif not live.next_depth or live.needs_in_flight:
            found = self._predictions.next(live)
            if found is not None and live.asks_after_miss and not live.next_depth and found.base_len < live.length:
                found = found if found.source is not Source.PROPOSAL else None  # another one is asked for
            if found is not None and not self._planes.carries(found.laws, live.target):
                self._stale["laws lost"] += 1
                found = None
            if found is not None and live.next_depth:
                live.in_flight = found.ids[: live.next_depth]
            elif found is not None:
                # The prediction came to the router in time and to the target too late, or was lost on the way there.
                made = Proposal(live.length, found.ids, found.laws, found.source).cut(live.plan.k)
                message = proposal_message(live.sequence, made)
                self._places.forward_proposal(live, message)
                live.put_in_flight(made.ids, message.source)

    def _answers(self, live: Live, link: Link) -> None:
        if not link.answered:
            link.answered = True
            self._places.tell_target(live)
