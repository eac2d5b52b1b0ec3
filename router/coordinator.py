"""The heart of the router: which peers serve a sequence, what was committed, what the draft anticipates.

Sans-IO. Peers are opaque keys, one for each connection, so that nothing said on a former connection can be taken for
the present one's. Methods take in what happened; `flush` gives what is to be said now, one message for each peer.

    target's outcomes               on_target     commit, check the cache, advance the draft; Emitted for the session
    draft's tables and proposals    on_draft      into the cache, and on to the sequence's target
    draft's need_resync, refused    on_draft      all committed ids again; plain decoding
    connections                     target_ready, target_lost, draft_ready, draft_lost
    requests                        open, close
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from google.rpc import code_pb2

from protos.ssd.v1 import draft_pb2, target_pb2, types_pb2
from router.live import Failure, Live, Totals
from router.placement import Outgoing, PeerKey, Placement
from router.plan import Plan
from ssd.proto_convert import outcome_table, outcome_table_message, proposal, proposal_message
from ssd.speculation.cache import CacheSnapshot, SpeculationCache
from ssd.speculation.proposal import Proposal, rebase

# Statuses after which another target may still take the sequence.
_ELSEWHERE = frozenset({code_pb2.RESOURCE_EXHAUSTED, code_pb2.UNAVAILABLE})
# The router has no vocabulary to hold guesses against; the target drops ids that it does not know.
_ANY_ID = 1 << 32


@dataclass(frozen=True, slots=True)
class Emitted:
    """Tokens became final. The outcome's ids follow the ones emitted before without gap or repetition."""

    sequence: int
    outcome: target_pb2.StepOutcome
    totals: Totals  # of the sequence, this round included


@dataclass(frozen=True, slots=True)
class Failed:
    """No target goes on with the sequence; it is already closed everywhere."""

    sequence: int
    failure: Failure


Event = Emitted | Failed


class Coordinator:
    """Speculation state of all live sequences. Not thread-safe."""

    def __init__(self, cache: SpeculationCache | None = None) -> None:
        self.totals = Totals()
        self.stale: Counter[str] = Counter()  # dropped messages of peers, by reason
        self._cache = cache or SpeculationCache()
        self._live: dict[int, Live] = {}
        self._places = Placement()
        self._changed: dict[int, Live] = {}  # their drafts have to hear of it at the next flush

    # Requests

    def open(self, sequence: int, plan: Plan) -> None:
        """Begin a sequence; its number must never have been used before. Without a target it waits for one."""
        if sequence in self._live:
            raise ValueError(f"sequence {sequence} is open already")
        live = self._live[sequence] = Live(sequence, plan)
        live.drafting = self._places.find_draft(live)
        self._find_target(live)

    def close(self, sequence: int) -> bool:
        """End a sequence on target and draft; False if it had ended already."""
        live = self._live.get(sequence)
        if live is not None:
            self._end(live)
        return live is not None

    def flush(self) -> Outgoing:
        """What is to be sent now: at most one message for each peer."""
        for live in self._changed.values():
            self._places.tell_draft(live)
        self._changed.clear()
        return self._places.take()

    # Connections

    def target_ready(self, key: PeerKey, max_k: int) -> None:
        """A new connection to a target; sequences that wait for one go there."""
        self._places.add_target(key, max_k)
        for live in self._live.values():
            if live.target is None:
                self._find_target(live)

    def target_lost(self, key: PeerKey) -> None:
        """Its sequences are replayed from their ids on another target, or wait for one."""
        for sequence in self._places.remove_target(key):
            live = self._live[sequence]
            live.target = None
            live.replays += 1
            self._find_target(live)

    def draft_ready(self, key: PeerKey, max_k: int) -> None:
        """A new connection to a draft; sequences without one are opened there with all that they have committed."""
        self._places.add_draft(key, max_k)
        for live in self._live.values():
            if live.draft is None:
                self._places.find_draft(live)

    def draft_lost(self, key: PeerKey) -> None:
        """Its sequences move to another draft or are decoded plainly."""
        for sequence in self._places.remove_draft(key):
            live = self._live[sequence]
            live.draft = None
            self._without_draft(live)

    # Messages

    def on_target(self, key: PeerKey, response: target_pb2.TargetServiceServeResponse) -> list[Event]:
        """Take in a message of a target."""
        events: list[Event] = []
        for outcome in response.outcomes:
            live = self._speaks_for(outcome.sequence, key, "target")
            if live is None:
                continue
            if outcome.base_len < live.length or not (outcome.ids or outcome.finish):
                self.stale["outcome repeated"] += 1
            elif outcome.base_len > live.length:
                message = f"the target is at {outcome.base_len} tokens, the stream at {live.length}: tokens were lost"
                events.append(self._fail(live, Failure(code_pb2.INTERNAL, message)))
            else:
                self._commit(live, outcome)
                events.append(Emitted(live.sequence, outcome, live.totals))
        for refused in response.refused:
            if live := self._speaks_for(refused.sequence, key, "target"):
                events.extend(self._refused(live, refused))
        return events

    def on_draft(self, key: PeerKey, response: draft_pb2.DraftServiceServeResponse) -> None:
        """Take in a message of a draft. Nothing in it can change what is emitted."""
        for table in response.tables:
            if live := self._speaks_for(table.sequence, key, "draft"):
                self._take_table(live, table)
        for made in response.proposals:
            if live := self._speaks_for(made.sequence, key, "draft"):
                self._take_proposal(live, made)
        for need in response.need_resync:
            if live := self._speaks_for(need.sequence, key, "draft"):
                live.resync = True
                self._changed[live.sequence] = live
        for refused in response.refused:
            if live := self._speaks_for(refused.sequence, key, "draft"):
                self._places.leave_draft(live, ended=True)
                live.refused_by.add(key)
                self._without_draft(live)

    # Inspection

    def of(self, sequence: int) -> Live | None:
        """State of a live sequence; for reading."""
        return self._live.get(sequence)

    def snapshot(self, sequence: int) -> CacheSnapshot:
        """What the speculation cache holds for a sequence."""
        return self._cache.snapshot(sequence)

    def waiting(self) -> list[int]:
        """Sequences without a target."""
        return [live.sequence for live in self._live.values() if live.target is None]

    @property
    def cached_tables(self) -> int:
        """Outcome tables in the speculation cache."""
        return sum(len(self._cache.snapshot(sequence).tables) for sequence in self._live)

    @property
    def stale_drops(self) -> int:
        """Messages of peers that were dropped, at once or later by the cache."""
        return self.stale.total() + sum(self._cache.stale.values())

    def __len__(self) -> int:
        """Live sequences."""
        return len(self._live)

    # Outcomes

    def _commit(self, live: Live, outcome: target_pb2.StepOutcome) -> None:
        live.ids.extend(outcome.ids)
        live.next_depth, hit = outcome.next_depth, None
        if not outcome.finish and live.may_speculate:
            found = self._cache.next_proposal(live.sequence, live.length, live.ids)
            if found is not None and not outcome.next_depth:
                # The prediction came to the router in time and to the target too late, or was lost on the way there.
                made = Proposal(live.length, found.ids[: live.plan.k])
                self._places.forward_proposal(live, proposal_message(live.sequence, made))
                live.next_depth = len(made.ids)
            hit = outcome.hit if live.plan.mode == types_pb2.MODE_SSD else None
        live.need_proposal = live.may_speculate and live.next_depth == 0
        for totals in (live.totals, self.totals):
            totals.count(outcome.proposed, outcome.accepted, hit)
        if outcome.finish:
            self._end(live, ended=True)
        else:
            self._changed[live.sequence] = live

    def _refused(self, live: Live, refused: types_pb2.Refused) -> list[Event]:
        live.refused_by.add(live.target)
        self._places.leave_target(live, ended=True)
        if refused.status in _ELSEWHERE and self._find_target(live):
            return []
        return [self._fail(live, Failure(refused.status, refused.message))]

    def _fail(self, live: Live, failure: Failure) -> Failed:
        self._end(live)
        return Failed(live.sequence, failure)

    def _end(self, live: Live, *, ended: bool = False) -> None:
        """Free a sequence everywhere. ended: its target has done so."""
        del self._live[live.sequence]
        self._cache.forget(live.sequence)
        self._places.leave_target(live, ended=ended)
        self._places.leave_draft(live, ended=False)

    # Predictions

    def _take_table(self, live: Live, message: types_pb2.OutcomeTable) -> None:
        if not live.has_reached(message.base_len):
            self.stale["table ahead"] += 1
            return
        self._draft_answers(live)
        table = outcome_table(message, vocab_size=_ANY_ID)
        if not table.agrees(live.ids[message.base_len :]):
            self.stale["table stale"] += 1
        elif self._cache.put(live.sequence, table):
            self._places.forward_table(live, message)

    def _take_proposal(self, live: Live, message: types_pb2.Proposal) -> None:
        if not live.has_reached(message.base_len):
            self.stale["proposal ahead"] += 1
            return
        made: Proposal | None = proposal(message, vocab_size=_ANY_ID)
        if message.ids:
            self._draft_answers(live)
            made = rebase(proposal(message, vocab_size=_ANY_ID), live.length, live.ids[message.base_len :])
        elif message.base_len < live.length:
            made = None
        if made is None:
            self.stale["proposal stale"] += 1
            return
        # An empty one is an answer too: the draft has none, so the target need not wait in this round.
        if made.ids:
            self._cache.put_proposal(live.sequence, made)
        self._places.forward_proposal(live, proposal_message(live.sequence, made))

    def _draft_answers(self, live: Live) -> None:
        """After a change of drafts the target waits for the new one only once it has answered, however late.

        While it reads the whole prompt, nobody would gain by waiting.
        """
        self._places.set_drafting(live, True)

    def _without_draft(self, live: Live) -> None:
        self._places.set_drafting(live, False)
        self._places.find_draft(live)

    def _find_target(self, live: Live) -> bool:
        # What was anticipated holds on a new target too: it draws the same tokens.
        tables = [outcome_table_message(live.sequence, table) for table in self._cache.snapshot(live.sequence).tables]
        return self._places.find_target(live, tables)

    def _speaks_for(self, sequence: int, key: PeerKey, role: str) -> Live | None:
        """The live sequence if this peer serves it now; else the message is dropped and counted."""
        live = self._live.get(sequence)
        if live is None or key != (live.target if role == "target" else live.draft):
            self.stale["sequence closed" if live is None else f"another {role}"] += 1
            return None
        return live
