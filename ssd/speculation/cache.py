"""The speculation cache: outcome tables and proposals of live sequences, answered by content."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ssd.speculation.law import Laws
from ssd.speculation.outcomes import OutcomeTable
from ssd.speculation.proposal import Proposal, Source

__all__ = ["CacheSnapshot", "Found", "Source", "SpeculationCache", "StaleReason"]

History = Sequence[int] | Callable[[int], Sequence[int]]
Entry = OutcomeTable | Proposal


class StaleReason(Enum):
    """Why a message, or a part of it, was of no use."""

    PASSED = "passed"  # it came when the sequence was already at or beyond all that it predicts
    MISMATCH = "mismatch"  # it came late, and other tokens had been committed
    SUPERSEDED = "superseded"  # others on better bases took its place before it was asked
    OVERSIZE = "oversize"  # more branches or deeper ones than the cache is willing to hold
    EVICTED = "evicted"  # too many sequences


@dataclass(frozen=True, slots=True)
class Found:
    """A proposal `ids` for the asked position, from an entry that was computed at `base_len`.

    laws   what each of ids was drawn from; () = point masses
    rank   the place that a table gave to the last committed token among the candidates; 0 = unknown
    """

    ids: tuple[int, ...]
    source: Source
    base_len: int
    laws: Laws = ()
    rank: int = 0


@dataclass(frozen=True, slots=True)
class CacheSnapshot:
    """What the cache holds for one sequence, newest base first."""

    tables: tuple[OutcomeTable, ...] = ()
    proposals: tuple[Proposal, ...] = ()


@dataclass(slots=True)
class _Held:
    """An entry, and whether it had its chance.

    An entry that came in time has had its chance once it was asked, a late one once it answered. Entries that leave
    after their chance are ordinary hits and misses; the others are stale and counted.
    """

    entry: Entry
    late: bool
    judged: bool = False


@dataclass(slots=True)
class _Sequence:
    held: list[_Held] = field(default_factory=list)
    base_len: int = 0  # the greatest committed length that was asked about; 0 = never asked


class SpeculationCache:
    """Bounded store of what the draft predicted; not thread-safe.

    Messages may be stale, doubled, reordered or wrong: an answer is only given when the predicted text agrees with the
    tokens that were really committed, so nothing that is put in can do more harm than a refused proposal. Callers drop
    messages of unknown sequences and other epochs before they get here.

    tables_per_sequence   tables, and as many proposals, kept on bases that the sequence has reached: the newest.
                          As many again are kept on bases that it has not reached: the nearest
    max_sequences         the longest untouched sequence is dropped beyond this
    max_branches          branches kept in one table; the first ones stay
    max_depth             tokens kept in a proposal or behind an outcome
    """

    def __init__(
        self, tables_per_sequence: int = 2, max_sequences: int = 4096, max_branches: int = 256, max_depth: int = 64
    ) -> None:
        self._per_sequence = _at_least_one("tables_per_sequence", tables_per_sequence)
        self._max_sequences = _at_least_one("max_sequences", max_sequences)
        self._max_branches = _at_least_one("max_branches", max_branches)
        self._max_depth = _at_least_one("max_depth", max_depth)
        self._sequences: OrderedDict[int, _Sequence] = OrderedDict()
        self._stale: Counter[StaleReason] = Counter()

    def __len__(self) -> int:
        """Sequences with an entry."""
        return len(self._sequences)

    @property
    def stale(self) -> dict[StaleReason, int]:
        """Drops so far, for every reason."""
        return {reason: self._stale[reason] for reason in StaleReason}

    def put(self, sequence: int, table: OutcomeTable) -> bool:
        """Keep a table, merged with what is known of the same round; False when it was dropped."""
        if len(table.proposal) > self._max_depth:
            self._stale[StaleReason.OVERSIZE] += 1
            return False
        return self._put(sequence, self._trimmed(table))

    def put_proposal(self, sequence: int, proposal: Proposal) -> bool:
        """Keep a proposal; False when it was dropped."""
        if len(proposal.ids) > self._max_depth:
            self._stale[StaleReason.OVERSIZE] += 1
            proposal = proposal.cut(self._max_depth)
        return self._put(sequence, proposal)

    def next_proposal(
        self, sequence: int, base_len_now: int, history: History, *, impartial: bool = False
    ) -> Found | None:
        """The best prediction of what follows the first base_len_now tokens of a sequence; None on a miss.

        `history` is either all committed ids (prompt included, at least base_len_now of them) or a function that
        gives the ids committed from a base up to base_len_now. The newest base answers; on one base the longest
        answer, a table's on a tie. Entries that can no longer match are dropped.

        impartial   for rejection verification: on one base a table's answer before a proposal's, then the one that
                    came last, so that nothing is chosen by the tokens that were drawn
        """
        state = self._sequences.get(sequence)
        if state is None:
            return None
        self._sequences.move_to_end(sequence)
        state.base_len = max(state.base_len, base_len_now)
        found: list[Found] = []
        state.held = [held for held in state.held if self._ask(held, base_len_now, history, found, impartial)]
        if impartial:
            return max(found, key=lambda one: (one.base_len, one.source is Source.TABLE), default=None)
        return max(found, key=lambda one: (one.base_len, len(one.ids), one.source is Source.TABLE), default=None)

    def forget(self, sequence: int) -> None:
        """Drop all of a sequence; harmless when there is nothing."""
        self._sequences.pop(sequence, None)

    def snapshot(self, sequence: int) -> CacheSnapshot:
        """What is held for a sequence now, for inspection."""
        state = self._sequences.get(sequence, _Sequence())
        entries = sorted((held.entry for held in state.held), key=lambda entry: -entry.base_len)
        return CacheSnapshot(
            tuple(entry for entry in entries if isinstance(entry, OutcomeTable)),
            tuple(entry for entry in entries if isinstance(entry, Proposal)),
        )

    def _put(self, sequence: int, entry: Entry) -> bool:
        state = self._touch(sequence)
        if entry.base_len + entry.reach <= state.base_len:
            self._stale[StaleReason.PASSED] += 1
            return False
        newcomer = _Held(entry, late=entry.base_len < state.base_len)
        for known in state.held:
            merged = _merged(known.entry, entry)
            if merged is not None:
                known.entry = self._trimmed(merged) if isinstance(merged, OutcomeTable) else merged
                return True
        alike = [held for held in state.held if type(held.entry) is type(entry)]
        others = [held for held in state.held if type(held.entry) is not type(entry)]
        state.held = self._best_bases([newcomer, *alike], state.base_len) + others
        return newcomer in state.held

    def _touch(self, sequence: int) -> _Sequence:
        state = self._sequences.setdefault(sequence, _Sequence())
        self._sequences.move_to_end(sequence)
        while len(self._sequences) > self._max_sequences:
            _, evicted = self._sequences.popitem(last=False)
            self._stale[StaleReason.EVICTED] += sum(not held.judged for held in evicted.held)
        return state

    def _best_bases(self, helds: list[_Held], base_len: int) -> list[_Held]:
        """Those to keep of one kind, the last arrived first among equal bases.

        A base that the sequence has not reached yet is unusual; such entries never push out those that can answer now.
        """
        reached = [held for held in helds if held.entry.base_len <= base_len or not base_len]
        ahead = [held for held in helds if held.entry.base_len > base_len > 0]
        reached.sort(key=lambda held: -held.entry.base_len)
        ahead.sort(key=lambda held: held.entry.base_len)
        dropped = reached[self._per_sequence :] + ahead[self._per_sequence :]
        self._stale[StaleReason.SUPERSEDED] += sum(not held.judged for held in dropped)
        return reached[: self._per_sequence] + ahead[: self._per_sequence]

    def _trimmed(self, table: OutcomeTable) -> OutcomeTable:
        deepest = max((len(branch.ids) for branch in table.branches), default=0)
        if len(table.branches) <= self._max_branches and deepest <= self._max_depth:
            return table
        self._stale[StaleReason.OVERSIZE] += 1
        branches = tuple(branch.cut(self._max_depth) for branch in table.branches[: self._max_branches])
        return OutcomeTable(table.base_len, table.proposal, min(table.depth, self._max_depth), branches)

    def _ask(self, held: _Held, base_len_now: int, history: History, found: list[Found], impartial: bool) -> bool:
        """Add the entry's answer to `found`; False when the entry can never answer again."""
        entry = held.entry
        if entry.base_len > base_len_now:
            return True
        held.judged = held.judged or not held.late
        if entry.base_len + entry.reach <= base_len_now:
            self._stale[StaleReason.PASSED] += not held.judged
            return False
        committed = history(entry.base_len) if callable(history) else history[entry.base_len : base_len_now]
        if not entry.agrees(committed):
            self._stale[StaleReason.MISMATCH] += not held.judged
            return False
        answer = entry.following(committed, impartial=impartial)
        if answer is not None:
            held.judged = True
            source = Source.TABLE if isinstance(entry, OutcomeTable) else entry.source
            found.append(Found(answer.ids, source, entry.base_len, answer.laws, answer.rank))
        return True


def _merged(known: Entry, entry: Entry) -> Entry | None:
    """One entry in place of two of the same round, or None when they are of different ones."""
    if isinstance(known, OutcomeTable) and isinstance(entry, OutcomeTable):
        same_round = (known.base_len, known.proposal) == (entry.base_len, entry.proposal)
        return known.merged_with(entry) if same_round else None
    return known if known == entry else None


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value
