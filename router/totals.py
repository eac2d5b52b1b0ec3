"""What was counted: of one sequence for its usage, and of all since start for the metrics."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from protos.ssd.v1 import target_pb2, types_pb2


@dataclass(slots=True)
class Totals:
    """Speculation counters, of one sequence or of many."""

    rounds: int = 0  # target steps that drew tokens
    proposed: int = 0  # draft tokens verified
    accepted: int = 0
    hits: int = 0  # rounds whose outcome was in the cache when it was needed
    misses: int = 0  # rounds whose outcome was needed and not there
    jit_rounds: int = 0  # rounds that verified a just-in-time proposal
    ngram_rounds: int = 0  # rounds that verified a prompt lookup
    plain_rounds: int = 0  # rounds without a proposal
    accepted_lengths: list[int] = field(default_factory=list)  # [k]: rounds that accepted exactly k draft tokens

    def count(self, outcome: target_pb2.StepOutcome, hit: bool | None) -> None:
        """Add one round; hit is None where nothing was anticipated or no proposal was needed."""
        proposed, accepted = outcome.proposed, outcome.accepted
        self.rounds += 1
        self.proposed += proposed
        self.accepted += accepted
        self.hits += hit is True
        self.misses += hit is False
        if not proposed:
            self.plain_rounds += 1
            return
        source = outcome.source
        self.jit_rounds += source == types_pb2.PROPOSAL_SOURCE_JIT
        self.ngram_rounds += source == types_pb2.PROPOSAL_SOURCE_NGRAM
        lengths = self.accepted_lengths
        if accepted >= len(lengths):
            lengths.extend([0] * (min(accepted, proposed) + 1 - len(lengths)))
        lengths[min(accepted, proposed)] += 1

    @property
    def table_rounds(self) -> int:
        """Rounds that verified a proposal from the speculation cache."""
        return self.rounds - self.plain_rounds - self.jit_rounds - self.ngram_rounds

    @property
    def accepted_at(self) -> list[int]:
        """[j] = rounds in which draft token j + 1 was accepted."""
        found: list[int] = []
        reached = 0
        for rounds in reversed(self.accepted_lengths[1:]):
            reached += rounds
            found.append(reached)
        return found[::-1]


@dataclass(slots=True)
class Tally:
    """Of all sequences since start."""

    by_mode: defaultdict[int, Totals] = field(default_factory=lambda: defaultdict(Totals))
    hits: Counter[tuple[int, int]] = field(default_factory=Counter)  # (accepted, rank of the target's token; 0 unknown)
    misses: Counter[int] = field(default_factory=Counter)  # accepted
    lengths: Counter[int] = field(default_factory=Counter)  # draft tokens verified in a round
    tokens: Counter[int] = field(default_factory=Counter)  # emitted, by mode

    def count(self, mode: int, outcome: target_pb2.StepOutcome, hit: bool | None) -> None:
        """Add one round of a sequence of `mode`."""
        self.by_mode[mode].count(outcome, hit)
        self.tokens[mode] += len(outcome.ids)
        self.lengths[outcome.proposed] += 1
        if hit:
            self.hits[outcome.accepted, outcome.hit_rank] += 1
        elif hit is False:
            self.misses[outcome.accepted] += 1

    def sum(self, name: str) -> int:
        """One counter of Totals over all modes."""
        return sum(getattr(totals, name) for totals in self.by_mode.values())
