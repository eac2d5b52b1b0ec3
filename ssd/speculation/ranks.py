"""What was seen of acceptances and of the ranks of the true next tokens, as decaying histograms.

A rank is the place, from 1, of the true next token in the draft's list of candidates for its acceptance length (the
list that leaves out s_{k+1} where k < K). Old observations fade with a half-life that is counted in observations.
Every estimate starts at a prior, which counts as much as `prior_weight` observations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ssd.speculation.allocation import Coverage, outcome_law

# Weights grow instead of old ones shrinking; at this size all are brought back to the scale of 1.
_RESCALE_AT = 1e12

# Histograms beside those of one acceptance length each.
_POOLED = -2  # all rejections
_BONUS = -1  # full acceptance


@dataclass(frozen=True, slots=True)
class StatisticsSettings:
    """How observations are weighed; half-lives and weights in observations.

    acceptance   prior acceptance of one token
    exponent     r of the prior power law: the token is beyond rank f with probability (f + 1)^-r
    ranks        ranks told apart; beyond them the prior's shape goes on
    positions    proposal positions told apart; later ones count as the last
    """

    half_life: float = 1000.0
    prior_weight: float = 10.0
    acceptance: float = 0.7
    exponent: float = 0.8
    ranks: int = 64
    positions: int = 16

    def __post_init__(self) -> None:
        if min(self.half_life, self.prior_weight, self.exponent) <= 0.0 or min(self.ranks, self.positions) < 1:
            raise ValueError(f"half-life, weight, exponent, ranks and positions must be positive: {self}")
        if not 0.0 < self.acceptance < 1.0:
            raise ValueError(f"the prior acceptance must be between 0 and 1, both excluded, got {self.acceptance}")


class DecayingRate:
    """The share of successes among trials."""

    def __init__(self, half_life: float) -> None:
        self._keep = 0.5 ** (1.0 / half_life)
        self.successes = 0.0
        self.trials = 0.0

    def observe(self, success: bool) -> None:
        self.successes = self.successes * self._keep + success
        self.trials = self.trials * self._keep + 1.0

    def estimate(self, prior: float, weight: float) -> float:
        return (self.successes + weight * prior) / (self.trials + weight)


class RankHistogram:
    """Coverage h(f) = P(rank <= f) from ranks, some of which are only known to lie beyond a list's end.

    Observations with lists of different lengths are brought together as survival times are (Kaplan and Meier): rank f
    is judged by those observations alone that could have shown it.
    """

    def __init__(self, settings: StatisticsSettings) -> None:
        self._weight = settings.prior_weight
        self._growth = 2.0 ** (1.0 / settings.half_life)
        self._unit = 1.0
        self._exact = [0.0] * (settings.ranks + 1)  # [f]: rank f was seen
        self._beyond = [0.0] * (settings.ranks + 1)  # [f]: seen to lie beyond f

    @property
    def ranks(self) -> int:
        return len(self._exact) - 1

    def observe(self, rank: int | None, listed: int | None = None) -> None:
        """Rank >= 1, or None for a token that was not among the `listed` candidates (None: nothing is known then)."""
        if rank is None and listed is None:
            return
        if (rank is not None and rank < 1) or (listed is not None and listed < 0):
            raise ValueError(f"ranks count from 1 and lists are not negative: rank={rank}, listed={listed}")
        self._unit *= self._growth
        if rank is not None and rank <= self.ranks:
            self._exact[rank] += self._unit
        else:
            self._beyond[min(self.ranks, rank if rank is not None else listed or 0)] += self._unit
        if self._unit > _RESCALE_AT:
            self._exact = [weight / self._unit for weight in self._exact]
            self._beyond = [weight / self._unit for weight in self._beyond]
            self._unit = 1.0

    def coverages(self, prior: Sequence[float]) -> list[float]:
        """h(0)..h(ranks), concave: candidates are ordered by belief, so a dent in h is noise and is levelled out.

        prior: the same numbers as they are believed before any observation.
        """
        able = self._able()
        survival, steps = 1.0, []
        for f in range(1, self.ranks + 1):
            events = self._exact[f] / self._unit + self._weight * (prior[f] - prior[f - 1])
            trials = able[f] / self._unit + self._weight * (1.0 - prior[f - 1])
            step = survival * min(1.0, max(0.0, events / trials)) if trials > 0.0 else 0.0
            steps.append(step)
            survival -= step
        covered = [0.0]
        for step in _falling(steps):
            covered.append(min(1.0, covered[-1] + step))
        return covered

    def _able(self) -> list[float]:
        """[f]: weight of the observations that tell whether the rank was f, given that it was not smaller."""
        able, total = [0.0] * (self.ranks + 1), 0.0
        for f in range(self.ranks, 0, -1):
            total += self._exact[f] + self._beyond[f]
            able[f] = total
        return able


@dataclass(frozen=True, slots=True)
class StatisticsSnapshot:
    """Statistics at one moment, for inspection and metrics.

    rounds        decayed number of rounds
    acceptance    of one proposal token, over all positions
    after_hit     acceptance of positions 1.. given that all earlier ones were accepted, in rounds after hits
    after_miss    the same after misses
    rejected      rejected[k][f]: h_k(f) when token k + 1 is the first one refused
    bonus         bonus[f]: h(f) for the token after a fully accepted proposal
    """

    rounds: float
    acceptance: float
    after_hit: tuple[float, ...]
    after_miss: tuple[float, ...]
    rejected: tuple[tuple[float, ...], ...]
    bonus: tuple[float, ...]


class AcceptanceStatistics:
    """Acceptances by position and coverages by acceptance length, of a workload or (with `parent`) one sequence.

    What a sequence has not shown yet is taken from its parent, which learns from all of its children. Memory is
    bounded by `settings`. Not thread-safe.
    """

    def __init__(
        self, settings: StatisticsSettings | None = None, *, parent: AcceptanceStatistics | None = None
    ) -> None:
        inherited = parent.settings if parent is not None else StatisticsSettings()
        self.settings: StatisticsSettings = settings or inherited
        self._parent = parent
        self._own_version = 0
        half_life, positions = self.settings.half_life, self.settings.positions
        self._all = DecayingRate(half_life)
        self._by_source = {hit: DecayingRate(half_life) for hit in (True, False)}
        self._by_position = {hit: [DecayingRate(half_life) for _ in range(positions)] for hit in (True, False)}
        self._histograms = {key: RankHistogram(self.settings) for key in (_POOLED, _BONUS, *range(positions))}
        self._rounds = DecayingRate(half_life)
        self._tables: dict[int, list[float]] = {}
        self._tables_version = -1

    @property
    def version(self) -> int:
        """Changes with every observation, here or at the parent."""
        return self._own_version + (self._parent.version if self._parent is not None else 0)

    def observe(
        self, accepted: int, depth: int, rank: int | None = None, *, listed: int | None = None, after_hit: bool = True
    ) -> None:
        """One round: `accepted` of `depth` proposal tokens, and the rank of the token that followed.

        rank     None = not among the candidates
        listed   how many candidates there were for this acceptance length; None = unknown, and with rank None
                 nothing is learnt about ranks
        """
        if not 0 <= accepted <= depth:
            raise ValueError(f"{accepted} tokens accepted of {depth}")
        if self._parent is not None:
            self._parent.observe(accepted, depth, rank, listed=listed, after_hit=after_hit)
        self._own_version += 1
        for position in range(min(accepted + 1, depth)):
            success = position < accepted
            self._all.observe(success)
            self._by_source[after_hit].observe(success)
            self._by_position[after_hit][self._place(position)].observe(success)
        self._rounds.observe(accepted == depth)
        if accepted == depth:
            self._histograms[_BONUS].observe(rank, listed)
        else:
            self._histograms[_POOLED].observe(rank, listed)
            self._histograms[self._place(accepted)].observe(rank, listed)

    @property
    def acceptance(self) -> float:
        """a: how often a proposal token is accepted, given that those before it were."""
        prior = self._parent.acceptance if self._parent is not None else self.settings.acceptance
        return self._all.estimate(prior, self.settings.prior_weight)

    def acceptance_at(self, position: int, *, after_hit: bool = True) -> float:
        """Acceptance of proposal token `position` (from 0), given that those before it were accepted."""
        weight = self.settings.prior_weight
        if self._parent is not None:
            prior = self._parent.acceptance_at(position, after_hit=after_hit)
            # One correction for all positions: how this sequence differs from its workload.
            prior = min(1.0, prior * self.acceptance / self._parent.acceptance)
        else:
            # One draft makes both kinds of proposals: much has to be seen before they are taken to differ.
            prior = self._by_source[after_hit].estimate(self.acceptance, 4.0 * weight)
        return self._by_position[after_hit][self._place(position)].estimate(prior, weight)

    def outcome_law(self, depth: int, *, after_hit: bool = True) -> tuple[float, ...]:
        """P_0..P_depth: probability that exactly k tokens of a proposal of `depth` are accepted."""
        return outcome_law([self.acceptance_at(j, after_hit=after_hit) for j in range(depth)])

    def expected_tokens(self, depth: int, *, after_hit: bool = True) -> float:
        """Tokens that a round with a proposal of `depth` commits, in the mean."""
        law = self.outcome_law(depth, after_hit=after_hit)
        return sum((k + 1) * p for k, p in enumerate(law))

    def coverage(self, k: int, depth: int, fan_out: int) -> float:
        """h_k(fan_out) in a round with a proposal of `depth`; concave in fan_out."""
        return self.coverage_of(depth)(k, fan_out)

    def coverage_of(self, depth: int) -> Coverage:
        """h_k(F) as a function of (k, F) for rounds with a proposal of `depth`, as it is now."""
        exponent = self.settings.exponent
        tables = [self._table(self._place(k)) for k in range(depth)] + [self._table(_BONUS)]

        def covered(k: int, fan_out: int) -> float:
            table = tables[k]
            last = len(table) - 1
            if fan_out <= last:
                return table[fan_out]
            return 1.0 - (1.0 - table[last]) * ((fan_out + 1) / (last + 1)) ** -exponent

        return covered

    def hit_rate(self, allocation: tuple[int, ...], *, after_hit: bool = True) -> float:
        """Expected share of rounds whose outcome is among the branches of `allocation` (F_0..F_depth)."""
        depth = len(allocation) - 1
        covered = self.coverage_of(depth)
        law = self.outcome_law(depth, after_hit=after_hit)
        return sum(p * covered(k, fan_out) for k, (p, fan_out) in enumerate(zip(law, allocation, strict=True)))

    def snapshot(self, positions: int = 8, ranks: int = 8) -> StatisticsSnapshot:
        """Statistics of the first `positions` positions and `ranks` ranks."""
        positions = min(positions, self.settings.positions)
        ranks = min(ranks, self.settings.ranks)
        return StatisticsSnapshot(
            rounds=self._rounds.trials,
            acceptance=self.acceptance,
            after_hit=tuple(self.acceptance_at(j) for j in range(positions)),
            after_miss=tuple(self.acceptance_at(j, after_hit=False) for j in range(positions)),
            rejected=tuple(tuple(self._table(k)[: ranks + 1]) for k in range(positions)),
            bonus=tuple(self._table(_BONUS)[: ranks + 1]),
        )

    def _place(self, position: int) -> int:
        return min(position, self.settings.positions - 1)

    def _table(self, key: int) -> list[float]:
        """h(0)..h(ranks) of one histogram, worked out once after each observation."""
        if self._tables_version != self.version:
            self._tables_version = self.version
            self._tables = {}
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self._histograms[key].coverages(self._prior(key))
        return table

    def _prior(self, key: int) -> list[float]:
        if self._parent is not None:
            return self._parent._table(key)
        if key >= 0:
            return self._table(_POOLED)
        # A token after full acceptance is the draft's first candidate about as often as a proposal token is accepted;
        # one after a refusal is known not to be that.
        settings = self.settings
        first_miss = 1.0 - self.acceptance if key == _BONUS else 2.0**-settings.exponent
        tail = ((f + 1) / 2.0 for f in range(1, settings.ranks + 1))
        return [0.0, *(1.0 - first_miss * ratio**-settings.exponent for ratio in tail)]


def _falling(steps: Sequence[float]) -> list[float]:
    """The falling sequence next to `steps` (least squares): neighbours that rise share their mean."""
    blocks: list[tuple[float, int]] = []
    for step in steps:
        mean, count = step, 1
        while blocks and blocks[-1][0] < mean:
            left, size = blocks.pop()
            mean = (left * size + mean * count) / (size + count)
            count += size
        blocks.append((mean, count))
    return [mean for mean, count in blocks for _ in range(count)]
