"""The speculation cache as the coordinator uses it: a table is unpacked only when somebody asks what is in it.

A target answers most outcomes from its own replica, so a table that came in time is only passed on and never looked
into here. After a miss, for several drafts, for a new target and for inspection it goes into the cache.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from protos.ssd.v1 import types_pb2
from router.live import Live
from ssd.proto_convert import outcome_table, outcome_table_message
from ssd.speculation.cache import CacheSnapshot, Found, SpeculationCache
from ssd.speculation.proposal import Proposal

# The router has no vocabulary to hold guesses against; the target drops ids that it does not know.
ANY_ID = 1 << 32
# Two rounds of four drafts that send each table at two depths.
_HELD = 48
# The cache keeps as many, so unpacking more would be for nothing.
_BASES = 2


class Predictions:
    """What drafts predicted for live sequences."""

    def __init__(self, cache: SpeculationCache | None = None) -> None:
        self._cache = cache or SpeculationCache()
        self._packed: dict[int, deque[types_pb2.OutcomeTable]] = {}

    def add_table(self, live: Live, message: types_pb2.OutcomeTable, stale: Counter[str]) -> bool:
        """Keep a table; False when it is of no use any more. live.has_reached(message.base_len) must hold."""
        if message.base_len == live.length:
            self._packed.setdefault(live.sequence, deque(maxlen=_HELD)).append(message)
            return True
        self._unpack(live.sequence)
        table = outcome_table(message, vocab_size=ANY_ID)
        if not table.agrees(live.ids[message.base_len :]):
            stale["table stale"] += 1
            return False
        return self._cache.put(live.sequence, table)

    def add_proposal(self, sequence: int, made: Proposal) -> None:
        """Keep a proposal for the present base."""
        self._cache.put_proposal(sequence, made)

    def next(self, live: Live) -> Found | None:
        """The best prediction of what follows the committed tokens."""
        self._unpack(live.sequence)
        impartial = live.plan.verification == types_pb2.VERIFICATION_REJECTION
        return self._cache.next_proposal(live.sequence, live.length, live.ids, impartial=impartial)

    def judged(self, live: Live, base_len: int, accepted: int) -> tuple[int | None, int | None]:
        """(rank, listed) of the token that followed `accepted` draft tokens in the round that began at base_len.

        rank     its place in the tables of that round; None when it is in none
        listed   how many of the likeliest candidates they had; None without a table
        """
        known: dict[int, int] = {}
        before, token = tuple(live.ids[base_len : base_len + accepted]), live.ids[base_len + accepted]
        for table in self.snapshot(live.sequence).tables:
            if table.base_len == base_len and table.proposal[:accepted] == before:
                branches = [branch for branch in table.branches if branch.accepted == accepted]
                known |= {branch.rank or place: branch.token for place, branch in enumerate(branches, start=1)}
        if not known:
            return None, None
        rank = next((rank for rank, candidate in known.items() if candidate == token), None)
        listed = 0
        while listed + 1 in known:
            listed += 1
        return rank, listed

    def tables(self, sequence: int) -> Sequence[types_pb2.OutcomeTable]:
        """For a target that takes the sequence over."""
        return [outcome_table_message(sequence, table) for table in self.snapshot(sequence).tables]

    def snapshot(self, sequence: int) -> CacheSnapshot:
        """What is held for a sequence."""
        self._unpack(sequence)
        return self._cache.snapshot(sequence)

    def forget(self, sequence: int) -> None:
        """Drop all of a sequence."""
        self._packed.pop(sequence, None)
        self._cache.forget(sequence)

    @property
    def stale(self) -> dict[str, int]:
        """Drops by the cache, for every reason."""
        return {f"cache {reason.value}": count for reason, count in self._cache.stale.items()}

    def _unpack(self, sequence: int) -> None:
        packed = self._packed.pop(sequence, None)
        if not packed:
            return
        bases = sorted({message.base_len for message in packed})[-_BASES:]
        for message in packed:
            if message.base_len >= bases[0]:
                self._cache.put(sequence, outcome_table(message, vocab_size=ANY_ID))
