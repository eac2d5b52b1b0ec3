"""What a setting is worth: predicted tokens per second of one target batch under AR, SD or SSD.

The batch is taken to be of one kind: every drafted row has the acceptances and ranks of the statistics given. Rounds
are those of the services: tables are built while the target verifies and are pushed to it, a row that missed rides
along with what its fallback gives, and only a lone row waits for a just-in-time proposal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from typing import Protocol

from ssd.speculation.allocation import Coverage, greedy_allocation, greedy_units, outcome_law
from ssd.speculation.step_time import StepTime

# Tables of at least this depth are also sent at half of it; a target that has half a table does not wait for the rest.
_HALVED_FROM = 4
# A table that takes the first share of the target's step is in time; at the second one it is late. In between it is
# both, as no step takes exactly its time.
_IN_TIME, _LATE = 0.97, 1.035


class Mode(Enum):
    AR = "ar"
    SD = "sd"
    SSD = "ssd"


class Fallback(Enum):
    """What a row of mode SSD does after a miss."""

    NONE = "none"  # rides along with no proposal
    NGRAM = "ngram"  # rides along with a proposal from prompt lookup
    JIT = "jit"  # waits for a just-in-time proposal of the draft


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to run.

    k          longest proposal: of mode SD, and of just-in-time and n-gram proposals
    budget     branches of a table, over all acceptance lengths
    depth      tokens grown behind each branch, so the length of a proposal after a hit
    share      share of the rows that are drafted; the others decode plainly
    """

    mode: Mode = Mode.AR
    k: int = 0
    budget: int = 0
    depth: int = 0
    fallback: Fallback = Fallback.NONE
    share: float = 1.0

    @property
    def draft_work(self) -> int:
        """Tokens that the draft computes for one row and round, in the long run."""
        return self.budget * self.depth if self.mode is Mode.SSD else self.k


@dataclass(frozen=True, slots=True)
class Load:
    """What the services are busy with.

    rows          sequences that decode in one batch of the target
    round_trip    seconds from an outcome at the target to the draft and back
    draft_rows    sequences that one draft serves when all rows are drafted; None = rows, 0 = there is no draft
    longest_wait  seconds that the target waits for a lone row's proposal at most
    """

    rows: int
    round_trip: float = 0.0
    draft_rows: int | None = None
    longest_wait: float = math.inf

    def __post_init__(self) -> None:
        if self.rows < 1 or min(self.round_trip, self.draft_rows or 0, self.longest_wait) < 0:
            raise ValueError(f"a load has at least one row and no negative number: {self}")

    @property
    def drafted(self) -> int:
        return self.rows if self.draft_rows is None else self.draft_rows


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be chosen: modes, proposal and table depth, branches of one table, fallbacks."""

    modes: frozenset[Mode] = frozenset(Mode)
    max_k: int = 8
    max_budget: int = 48
    fallbacks: frozenset[Fallback] = frozenset(Fallback)

    def __post_init__(self) -> None:
        if not self.modes or self.max_k < 1 or self.max_budget < 1:
            raise ValueError(f"limits must leave a mode, a token and a branch: {self}")


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a setting should give.

    tokens_per_s       of the whole batch
    tokens_per_round   of one drafted row
    round_s            length of a round in seconds
    verify_s, table_s  its two sides: the target's step, and the draft's table with the way there and back
    hit_rate           of rounds that follow a hit
    hits               share of the drafted rows' rounds whose proposal came from a table
    late               share of rounds at whose end only half of a table is there
    """

    setting: Setting
    tokens_per_s: float
    tokens_per_round: float
    round_s: float
    verify_s: float
    table_s: float = 0.0
    hit_rate: float = 0.0
    hits: float = 0.0
    late: float = 0.0


class Statistics(Protocol):
    """What is known of acceptances and ranks; `ranks.AcceptanceStatistics` is one."""

    def outcome_law(self, depth: int, *, after_hit: bool = True) -> tuple[float, ...]: ...

    def coverage_of(self, depth: int) -> Coverage: ...


@dataclass(frozen=True, slots=True)
class _State:
    """Rounds of one kind: mean tokens, proposal length, chance that the next one is a hit, wait before it begins."""

    tokens: float
    length: float
    hit: float
    wait: float = 0.0


@dataclass(slots=True)
class Lateness:
    """How much longer tables take than predicted, told by how many of them are late.

    Passes and the way there and back are measured, but not what else passes until a table can be used: queues, other
    threads, steps that are longer than their mean. Only what comes of it can be seen: whether a hit had the whole table
    or half of it. Where more are late than predicted the factor grows, where fewer are it shrinks, until both agree.
    Tables that are in time as expected show nothing, so the factor goes back towards 1 by and by, and what was too deep
    once is tried again.
    """

    slowness: float = 1.0
    eagerness: float = 0.01  # largest relative change that one table brings
    return_rate: float = 0.004  # of the factor's distance from 1, in logarithms, with every table
    bounds: tuple[float, float] = (0.7, 2.0)

    def observe(self, late: bool, expected: float, weight: float = 1.0) -> None:
        """A table was late or not, where `expected` was the chance of it."""
        least, most = self.bounds
        kept = self.slowness ** (1.0 - self.return_rate * weight)
        changed = kept * math.exp(self.eagerness * weight * (late - expected))
        self.slowness = min(most, max(least, changed))


class Outlook:
    """Predictions for one moment; not to be kept while the statistics change.

    ngram_acceptance   chance that a token of prompt lookup is accepted, None = there is no such proposal
    asked              the draft's step while the target waits for it, None = as any other
    alone              the target's step while the draft computes nothing, None = as any other
    slowness           how much longer a table takes, with its way, than passes and messages say: see Lateness
    """

    BUDGETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    SHARES = (0.75, 0.5, 0.25)

    def __init__(
        self,
        statistics: Statistics,
        target: StepTime,
        draft: StepTime,
        load: Load,
        *,
        ngram_acceptance: float | None = None,
        asked: StepTime | None = None,
        alone: StepTime | None = None,
        slowness: float = 1.0,
    ) -> None:
        self._slowness = slowness
        self._statistics = statistics
        self._target = target
        self._draft = draft
        self._asked = draft if asked is None else asked
        self._alone = target if alone is None else alone
        self._load = load
        self._ngram = ngram_acceptance
        self._laws: dict[tuple[int, Fallback | None], tuple[float, ...]] = {}
        self._hits: dict[tuple[int, Fallback | None], tuple[int, list[float]]] = {}
        self._states: dict[tuple[Fallback | None, int, int], _State] = {}

    def predict(self, setting: Setting) -> Prediction:
        """What `setting` gives under the present load."""
        if setting.mode is Mode.AR:
            return self._plain(setting)
        return self._sd(setting) if setting.mode is Mode.SD else self._ssd(setting)

    def candidates(self, limits: Limits) -> list[Prediction]:
        """Predictions of all settings worth looking at within `limits`; without a draft only of plain decoding."""
        if not self._load.drafted:
            return [self.predict(Setting())]
        found = [self.predict(Setting())] if Mode.AR in limits.modes else []
        sd = [self.predict(Setting(Mode.SD, k)) for k in range(1, limits.max_k + 1)]
        if Mode.SD in limits.modes:
            found += sd
        if Mode.SSD in limits.modes:
            just_in_time = max(sd, key=lambda one: one.tokens_per_s).setting.k
            found += [self.predict(setting) for setting in self._ssd_settings(limits, just_in_time)]
        return found + [self.predict(setting) for one in found for setting in self._smaller_shares(one)]

    def allocation(self, setting: Setting) -> tuple[int, ...]:
        """F_0..F_depth of a table for the round that follows a hit."""
        law = self._law(setting.depth, None)
        return greedy_allocation(law, self._statistics.coverage_of(setting.depth), setting.budget)

    def _ssd_settings(self, limits: Limits, just_in_time: int) -> Iterator[Setting]:
        budgets = [budget for budget in self.BUDGETS if budget < limits.max_budget] + [limits.max_budget]
        for depth in range(1, limits.max_k + 1):
            for budget in budgets:
                basic = Setting(Mode.SSD, max(depth, just_in_time), budget, depth)
                if Fallback.NONE in limits.fallbacks or self._load.rows > 1:
                    yield basic
                if Fallback.NGRAM in limits.fallbacks and self._ngram is not None:
                    yield replace(basic, fallback=Fallback.NGRAM)
                if Fallback.JIT in limits.fallbacks and self._load.rows == 1:
                    yield replace(basic, fallback=Fallback.JIT)

    def _smaller_shares(self, found: Prediction) -> Iterator[Setting]:
        if self._load.rows > 1 and found.setting.mode is Mode.SSD and found.table_s > found.verify_s:
            for share in self.SHARES:
                if share * self._load.rows >= 1.0:
                    yield replace(found.setting, share=share)

    def _plain(self, setting: Setting) -> Prediction:
        seconds = self._undisturbed(self._load.rows, self._load.rows)
        return Prediction(setting, self._load.rows / seconds, 1.0, seconds, seconds)

    def _sd(self, setting: Setting) -> Prediction:
        rows, drafted = self._load.rows, setting.share * self._load.drafted
        tokens = _mean_tokens(self._law(setting.k, Fallback.JIT))
        verify = self._undisturbed(rows, rows * (1.0 + setting.share * setting.k))
        seconds = verify + self._load.round_trip + setting.k * self._asked(drafted, drafted)
        rate = rows * (1.0 + setting.share * (tokens - 1.0)) / seconds
        return Prediction(setting, rate, tokens, seconds, verify)

    def _ssd(self, setting: Setting) -> Prediction:
        rows = self._load.rows
        hit, miss = self._hit_state(setting, setting.depth), self._miss_state(setting)
        hits = _stationary(hit, miss)
        half = sent_first(setting.depth)
        halved = self._hit_state(setting, half)
        # Short proposals make short steps, in which tables are late again: what half tables lead to has to hold.
        length = hits * halved.length + (1.0 - hits) * miss.length
        late = self._late(setting, halved.length if rows == 1 else length)
        if late and setting.fallback is Fallback.JIT:
            # While a just-in-time proposal travels to the target, the draft is already at the table that follows it.
            late_then = self._late(setting, miss.length, self._load.round_trip)
            late = hit.hit * late + (1.0 - hit.hit) * late_then
        if late:
            hit = _mixture(hit, halved, late)
            hits = _stationary(hit, miss)
        depth = setting.depth - late * (setting.depth - self._worth_waiting_for(setting, half))
        tokens = hits * hit.tokens + (1.0 - hits) * miss.tokens
        if rows == 1:
            # A lone row's rounds have one length each; those of many rows are all of a mixture.
            after_hit = self._round(setting, depth, hit.length)
            after_miss = self._round(setting, depth, miss.length)
            verify, table, seconds = (
                hits * one + (1.0 - hits) * other for one, other in zip(after_hit, after_miss, strict=True)
            )
            seconds += (1.0 - hits) * miss.wait
        else:
            verify, table, seconds = self._round(setting, depth, hits * hit.length + (1.0 - hits) * miss.length)
        rate = rows * (1.0 + setting.share * (tokens - 1.0)) / seconds
        return Prediction(setting, rate, tokens, seconds, verify, table, hit.hit, hits, late)

    def _worth_waiting_for(self, setting: Setting, half: int) -> float:
        """The depth whose time counts where only half of a table is used: with half a pass that is of no use any more,
        if the draft is past the half and still busy with the rest when it learns of an outcome. Of several rows some
        are always that far."""
        verify, on_its_way = self._verify(setting, half), self._load.round_trip
        first, whole = (self._table(setting, depth, half) - on_its_way for depth in (half, setting.depth))
        past_half = self._load.rows > 1 or first < verify + on_its_way
        return half + 0.5 * (past_half and verify < whole)

    def _late(self, setting: Setting, length: float, head_start: float = 0.0) -> float:
        """Share of rounds at whose end only half of a table is there, although all of it was wanted."""
        if sent_first(setting.depth) == setting.depth:
            return 0.0
        ratio = (self._table(setting, setting.depth, length) - head_start) / self._verify(setting, length)
        return min(1.0, max(0.0, (ratio - _IN_TIME) / (_LATE - _IN_TIME)))

    def _round(self, setting: Setting, depth: float, length: float) -> tuple[float, float, float]:
        """Seconds of verification, of a table of `depth` with its way, and of the round, with proposals of this mean
        length."""
        verify, table = self._verify(setting, length), self._table(setting, depth, length)
        # A late table delays the next verification, but not the next table: the draft hears of an outcome while the
        # target still waits. So half of the delay is made good, unless the draft has no time between two tables at all.
        return verify, table, max(verify, 0.5 * (verify + table), table - self._load.round_trip)

    def _undisturbed(self, rows: float, tokens: float) -> float:
        """Seconds of a target's step beside which no tables are made. A draft beside it makes no step shorter, so where
        the fits say so one of them was never seen under this load, and the other one knows better."""
        return min(self._alone(rows, tokens), self._target(rows, tokens))

    def _verify(self, setting: Setting, length: float) -> float:
        rows = self._load.rows
        return self._target(rows, rows * (1.0 + setting.share * length))

    def _table(self, setting: Setting, depth: float, length: float) -> float:
        drafted = max(1.0, setting.share * self._load.drafted)
        grow = depth * self._draft(drafted, drafted * setting.budget)
        return self._slowness * (self._draft(drafted, drafted * (1.0 + length)) + grow + self._load.round_trip)

    def _hit_state(self, setting: Setting, depth: int) -> _State:
        return self._state(None, depth, setting.budget, 0.0)

    def _miss_state(self, setting: Setting) -> _State:
        fallback = setting.fallback
        if fallback is Fallback.NONE:
            return self._state(fallback, 0, setting.budget, 0.0)
        wait = self._load.round_trip + setting.k * self._asked(1, 1) if fallback is Fallback.JIT else 0.0
        return self._state(fallback, setting.k, setting.budget, wait)

    def _state(self, source: Fallback | None, length: int, budget: int, wait: float) -> _State:
        key = (source, length, budget)
        if key not in self._states:
            tokens = _mean_tokens(self._law(length, source))
            self._states[key] = _State(tokens, length, self._hit_rate(length, source, budget), wait)
        return self._states[key]

    def _law(self, depth: int, source: Fallback | None) -> tuple[float, ...]:
        """P_0..P_depth for a proposal from a fallback, or (None) from a table."""
        key = (depth, source)
        if key not in self._laws:
            if source is Fallback.NGRAM:
                self._laws[key] = outcome_law([self._ngram or 0.0] * depth)
            else:
                self._laws[key] = self._statistics.outcome_law(depth, after_hit=source is None)
        return self._laws[key]

    def _hit_rate(self, depth: int, source: Fallback | None, budget: int) -> float:
        """Hit rate of the best allocation. One greedy run has those of all smaller budgets on its way."""
        key = (depth, source)
        known = self._hits.get(key)
        if known is None or known[0] < budget:
            size = max(budget, 48)
            units = greedy_units(self._law(depth, source), self._statistics.coverage_of(depth))
            reached = [0.0]
            for _, gain in islice(units, size):
                reached.append(reached[-1] + gain)
            known = self._hits[key] = (size, reached)
        return min(1.0, known[1][budget])


def best_by_mode(predictions: Sequence[Prediction]) -> Mapping[Mode, Prediction]:
    """The best prediction of each mode that there is one of.

    All rows are drafted unless a smaller share is more than 2 % faster: a shorter table for everybody is fairer, and
    steadier, than none for some.
    """
    found: dict[Mode, Prediction] = {}
    for mode in Mode:
        of_mode = [one for one in predictions if one.setting.mode is mode]
        if of_mode:
            best = thriftiest(of_mode)
            full = [one for one in of_mode if one.setting.share == 1.0]
            fair = thriftiest(full) if full else best
            found[mode] = fair if fair.tokens_per_s >= 0.98 * best.tokens_per_s else best
    return found


def thriftiest(predictions: Sequence[Prediction]) -> Prediction:
    """The fastest prediction, or one within 0.3 % of it that asks less of the draft."""
    enough = 0.997 * max(one.tokens_per_s for one in predictions)
    near = [one for one in predictions if one.tokens_per_s >= enough]
    return min(near, key=lambda one: (one.setting.draft_work, -one.tokens_per_s))


def sent_first(depth: int) -> int:
    """The depth that a table is sent with when it is not finished in time."""
    return -(-depth // 2) if depth >= _HALVED_FROM else depth


def _stationary(hit: _State, miss: _State) -> float:
    """Share of hits in the long run, where they follow hits with one probability and misses with another."""
    return miss.hit / (miss.hit + 1.0 - hit.hit) if miss.hit > 0.0 else 0.0


def _mixture(one: _State, other: _State, share: float) -> _State:
    """A state that is `other` in this share of rounds."""
    keep = 1.0 - share
    return _State(
        keep * one.tokens + share * other.tokens,
        keep * one.length + share * other.length,
        keep * one.hit + share * other.hit,
        keep * one.wait + share * other.wait,
    )


def _mean_tokens(law: tuple[float, ...]) -> float:
    return sum((k + 1) * p for k, p in enumerate(law))
