"""The heart of the router: which peers serve a sequence, what was committed, what the draft anticipates.

Sans-IO. Peers are opaque keys, one for each connection, so that nothing said on a former connection can be taken for
the present one's. Methods take in what happened; `flush` gives what is to be said now, one message for each peer.

    target's outcomes               on_target     commit, check the cache, advance the draft; Emitted for the session
    draft's tables and proposals    on_draft      into the cache, and on to the sequence's target
    draft's need_resync, refused    on_draft      all committed ids again; plain decoding
    connections                     target_ready, target_lost, draft_ready, draft_lost
    requests                        open, close
    mode AUTO                       govern        decide how sequences go on, when there is time for it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from google.rpc import code_pb2

from protos.ssd.v1 import draft_pb2, target_pb2, types_pb2
from router.governing import Governing
from router.live import Failure, Link, Live
from router.placement import Outgoing, PeerKey, Placement
from router.plan import Plan
from router.planes import Planes
from router.predictions import Predictions
from router.rounds import Rounds
from router.totals import Tally, Totals
from ssd.speculation.cache import CacheSnapshot, SpeculationCache
from ssd.tensor_plane.choice import AUTO, Ability

# Statuses after which another target may still take the sequence.
_ELSEWHERE = frozenset({code_pb2.RESOURCE_EXHAUSTED, code_pb2.UNAVAILABLE})


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

INLINE_ONLY = Ability()


class Coordinator:
    """Speculation state of all live sequences. Not thread-safe."""

    def __init__(
        self,
        cache: SpeculationCache | None = None,
        governing: Governing | None = None,
        *,
        tensor_plane: str = AUTO,
        plane_limit_s: float = 2.0,
        name: str = "",
    ) -> None:
        """tensor_plane, plane_limit_s, name: see Planes."""
        self.governing = governing or Governing()
        self.stale: Counter[str] = Counter()  # dropped messages of peers, by reason
        self._predictions = Predictions(cache)
        self._live: dict[int, Live] = {}
        self._places = Placement()
        self.planes = Planes(self._places, tensor_plane, plane_limit_s, name)
        self._rounds = Rounds(self._places, self._predictions, self.governing, self.planes, self.stale)
        self._changed: dict[int, Live] = {}  # their drafts have to hear of it at the next flush
        self._undecided: dict[int, Live] = {}  # of mode AUTO, with outcomes since the last decision

    # Requests

    def open(self, sequence: int, plan: Plan) -> None:
        """Begin a sequence; its number must never have been used before. Without a target it waits for one."""
        if sequence in self._live:
            raise ValueError(f"sequence {sequence} is open already")
        live = self._live[sequence] = Live(sequence, plan)
        if plan.governed:
            self.governing.begin(live)
            live.fallback = live.wanted_fallback
        self._places.find_drafts(live)
        for link in live.links:
            link.answered = True  # it reads the prompt while the target does
        live.drafting = live.draftable
        self._find_target(live)

    def close(self, sequence: int) -> bool:
        """End a sequence on target and drafts; False if it had ended already."""
        live = self._live.get(sequence)
        if live is not None:
            self._end(live)
        return live is not None

    def flush(self) -> Outgoing:
        """What is to be sent now: at most one message for each peer."""
        for live in self._changed.values():
            self._places.tell_drafts(live)
        self._changed.clear()
        return self._places.take()

    def govern(self, enough: Callable[[], bool] = lambda: False) -> bool:
        """Decide how sequences in mode AUTO go on, until it is `enough` for now: a decision may take milliseconds. So
        this comes after a flush, as nobody who learns of an outcome should wait for it. Whether something is to be sent
        now."""
        decided = False
        while self._undecided and not (decided and enough()):
            live = self._undecided.pop(next(iter(self._undecided)))
            if live.sequence in self._live:
                self._rounds.govern(live)
            decided = True
        return decided

    # Connections

    def target_ready(self, key: PeerKey, max_k: int, ability: Ability = INLINE_ONLY) -> None:
        """A new connection to a target; sequences that wait for one go there."""
        self.planes.target_ready(key, self._places.add_target(key, max_k), ability)
        for live in self._live.values():
            if live.target is None:
                self._find_target(live)

    def target_lost(self, key: PeerKey) -> None:
        """Its sequences are replayed from their ids on another target, or wait for one."""
        self.governing.peer_lost(key)
        self.planes.lost(key)
        for sequence in self._places.remove_target(key):
            live = self._live[sequence]
            live.target = None
            live.replays += 1
            self._find_target(live)

    def draft_ready(self, key: PeerKey, max_k: int, ability: Ability = INLINE_ONLY) -> None:
        """A new connection to a draft; sequences that want one more go there with all that they have committed."""
        self._places.add_draft(key, max_k)
        self.planes.draft_ready(key, ability)
        for live in self._live.values():
            self._places.find_drafts(live)

    def draft_lost(self, key: PeerKey) -> None:
        """Its sequences go on with their other drafts, move to another one, or are decoded plainly."""
        self.governing.peer_lost(key)
        self.planes.lost(key)
        for sequence in self._places.remove_draft(key):
            live = self._live[sequence]
            live.links = [link for link in live.links if link.key != key]
            self._without_draft(live)

    def round_trip(self, key: PeerKey, seconds: float) -> None:
        """A peer has answered a heartbeat after so long."""
        self.governing.round_trip(key, seconds)

    # Messages

    def on_target(self, key: PeerKey, response: target_pb2.TargetServiceServeResponse) -> list[Event]:
        """Take in a message of a target."""
        events: list[Event] = []
        if response.HasField("timing"):
            self.governing.target_stepped(response.timing)
        for outcome in response.outcomes:
            live = self._at_target(outcome.sequence, key)
            if live is None:
                continue
            if outcome.base_len < live.length or not (outcome.ids or outcome.finish):
                self.stale["outcome repeated"] += 1
            elif outcome.base_len > live.length:
                message = f"the target is at {outcome.base_len} tokens, the stream at {live.length}: tokens were lost"
                events.append(self._fail(live, Failure(code_pb2.INTERNAL, message)))
            else:
                self._rounds.commit(live, outcome)
                if outcome.finish:
                    self._end(live, ended=True)
                else:
                    self._changed[live.sequence] = live
                    if live.plan.governed:
                        self._undecided[live.sequence] = live
                events.append(Emitted(live.sequence, outcome, live.totals))
        for refused in response.refused:
            if live := self._at_target(refused.sequence, key):
                events.extend(self._refused(live, refused))
        for report in response.planes:
            self.planes.report(key, report)
        return events

    def on_draft(self, key: PeerKey, response: draft_pb2.DraftServiceServeResponse) -> None:
        """Take in a message of a draft. Nothing in it can change what is emitted."""
        if response.HasField("timing"):
            self.governing.draft_stepped(response.timing)
        for table in response.tables:
            if found := self._drafts_for(table.sequence, key):
                self._rounds.take_table(*found, table)
        for made in response.proposals:
            if found := self._drafts_for(made.sequence, key):
                self._rounds.take_proposal(*found, made)
                self._changed[made.sequence] = found[0]  # other drafts may not know it
        for need in response.need_resync:
            if found := self._drafts_for(need.sequence, key):
                live, link = found
                link.resync = True
                self._changed[live.sequence] = live
        for refused in response.refused:
            if found := self._drafts_for(refused.sequence, key):
                live, link = found
                self._places.leave_draft(live, link, ended=True)
                live.refused_by.add(key)
                self._without_draft(live)
        for report in response.planes:
            self.planes.report(key, report)

    # Inspection

    def of(self, sequence: int) -> Live | None:
        """State of a live sequence; for reading."""
        return self._live.get(sequence)

    def snapshot(self, sequence: int) -> CacheSnapshot:
        """What the speculation cache holds for a sequence."""
        return self._predictions.snapshot(sequence)

    def waiting(self) -> list[int]:
        """Sequences without a target."""
        return [live.sequence for live in self._live.values() if live.target is None]

    @property
    def cached_tables(self) -> int:
        """Outcome tables in the speculation cache."""
        return sum(len(self.snapshot(sequence).tables) for sequence in self._live)

    @property
    def tally(self) -> Tally:
        """What was counted since start."""
        return self._rounds.tally

    @property
    def stale_by_reason(self) -> dict[str, int]:
        """Messages of peers that were dropped, at once or later by the cache."""
        return {**self.stale, **self._predictions.stale}

    def __len__(self) -> int:
        """Live sequences."""
        return len(self._live)

    # Inside

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
        self._predictions.forget(live.sequence)
        self.governing.forget(live)
        self._places.leave_target(live, ended=ended)
        for link in list(live.links):
            self._places.leave_draft(live, link, ended=False)

    def _without_draft(self, live: Live) -> None:
        self._places.find_drafts(live)
        self._places.tell_target(live)
        self._changed[live.sequence] = live  # another one may have to be asked for what this one owed

    def _find_target(self, live: Live) -> bool:
        # What was anticipated holds on a new target too: it draws the same tokens.
        tables = self._predictions.tables(live.sequence)
        if not self._places.find_target(live):
            return False
        self._places.forward_tables(live, [table for table in tables if self.planes.carries_table(table, live.target)])
        self._changed[live.sequence] = live  # its drafts are to send laws there
        return True

    def _at_target(self, sequence: int, key: PeerKey) -> Live | None:
        """The live sequence if this target has it now; else the message is dropped and counted."""
        live = self._live.get(sequence)
        if live is None or key != live.target:
            self.stale["sequence closed" if live is None else "another target"] += 1
            return None
        return live

    def _drafts_for(self, sequence: int, key: PeerKey) -> tuple[Live, Link] | None:
        live = self._live.get(sequence)
        link = live.link_to(key) if live is not None else None
        if live is None or link is None:
            self.stale["sequence closed" if live is None else "another draft"] += 1
            return None
        return live, link
