"""How long a forward pass takes, learnt while serving.

The model is t = base + per_row * rows + per_token * tokens + sum of hinges * max(0, tokens - knee), all factors >= 0: a
pass over few tokens is bound by reading the weights and costs nearly the same for all of them, one over many is bound
by arithmetic. Non-negative factors make the time rise, ever more steeply, with rows and tokens, which is what
comparisons between settings that were never run rely on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

KNEES = (64, 256)

# A relative deviation beyond this many mean ones is cut off: a pause of the machine tells nothing about a step. So many
# of them in a row, on one side, are no pauses.
_OUTLIER = 4.0
_RUN_OF_CHANGE = 5
_UNJUDGED = 4.0
_ABSURD = 30.0  # relative deviation of a first step
_LEAST_SCALE = 0.02

# (Noise of one step / likely error of the prior)^2, both relative: a prior may well be wrong by its own size.
_PRIOR_PULL = 1e-3


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one forward pass.

    base        of any pass
    per_row     of each sequence in it
    per_token   of each query token in it
    hinges      further seconds of each token beyond the knee: (knee, seconds) pairs
    """

    base: float
    per_row: float = 0.0
    per_token: float = 0.0
    hinges: tuple[tuple[int, float], ...] = ()

    def __call__(self, rows: float, tokens: float) -> float:
        """Seconds of a pass over `tokens` query tokens of `rows` sequences."""
        seconds = self.base + self.per_row * rows + self.per_token * tokens
        for knee, slope in self.hinges:
            if tokens > knee:
                seconds += slope * (tokens - knee)
        return seconds


class StepTimeFit:
    """A StepTime fitted to observed steps: decayed least squares of relative errors, non-negative, drawn to a prior.

    prior       what is believed before any step was seen; yields to measurements the later, the larger `prior_weight`
    half_life   steps after which an observation counts half
    """

    def __init__(self, prior: StepTime, *, half_life: float = 1000.0, prior_weight: float = 1.0) -> None:
        if prior.base <= 0.0 or half_life <= 0.0 or prior_weight <= 0.0:
            raise ValueError(f"base time, half-life and prior weight must be positive, got {prior}")
        self._knees = tuple(dict.fromkeys((*KNEES, *(knee for knee, _ in prior.hinges))))
        slopes = dict(prior.hinges)
        self._believed = [prior.base, prior.per_row, prior.per_token, *(slopes.get(k, 0.0) for k in self._knees)]
        self._keep = 0.5 ** (1.0 / half_life)
        self._prior_weight = prior_weight
        size = len(self._believed)
        self._products = [[0.0] * size for _ in range(size)]
        self._answers = [0.0] * size
        self._sizes = [0.0] * size  # decayed sums of squares of the raw inputs
        self._observed = 0.0
        self._scale = 0.0
        self._run = 0  # outliers in a row, negative when they were too fast
        self._prior = prior
        self._fitted: StepTime | None = prior

    @property
    def observations(self) -> float:
        """Decayed number of steps seen."""
        return self._observed

    @property
    def model(self) -> StepTime:
        """The present fit."""
        if self._fitted is None:
            self._fitted = self._fit()
        return self._fitted

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        """One step of `rows` sequences and `tokens` query tokens. Raises ValueError unless all are positive."""
        if not (rows > 0 and tokens > 0 and 0.0 < seconds < float("inf")):
            raise ValueError(f"a step has positive rows, tokens and seconds, got {rows}, {tokens}, {seconds}")
        expected = self.model(rows, tokens)
        seconds = expected * (1.0 + self._believable(seconds / expected - 1.0))
        inputs = [1.0, float(rows), float(tokens), *(float(max(0, tokens - knee)) for knee in self._knees)]
        # By the prior and not by the fit: weights must not change with the scale that is being learnt.
        weight = 1.0 / self._prior(rows, tokens) ** 2
        for i, left in enumerate(inputs):
            line = self._products[i]
            for j, right in enumerate(inputs):
                line[j] = line[j] * self._keep + weight * left * right
            self._answers[i] = self._answers[i] * self._keep + weight * left * seconds
            self._sizes[i] = self._sizes[i] * self._keep + left * left
        self._observed = self._observed * self._keep + 1.0
        self._fitted = None

    def _believable(self, deviation: float) -> float:
        """The relative deviation of a step from the fit, cut to what is not an outlier; a run of outliers is a change.

        The very first steps are taken as they are, as the prior may well be wrong, but for a single one that is absurd:
        kernels may have been compiled in it.
        """
        early = self._observed < _UNJUDGED
        if early and deviation < _ABSURD:
            self._run = 0
            self._scale = max(_LEAST_SCALE, min(abs(deviation), 0.1))
            return deviation
        limit = min(_OUTLIER * self._scale, 0.9)
        if abs(deviation) <= limit:
            self._run = 0
            self._scale = max(_LEAST_SCALE, 0.9 * self._scale + 0.1 * abs(deviation))
            return deviation
        side = 1 if deviation > 0 else -1
        self._run = self._run + side if self._run * side > 0 else side
        self._scale *= 1.1
        if abs(self._run) < (2 if early else _RUN_OF_CHANGE):
            return side * limit
        self._run = 0
        self._forget()
        return deviation

    def _forget(self) -> None:
        """Let all that was learnt count as no more than a few steps, so that the next ones decide."""
        share = min(1.0, 0.5 * _UNJUDGED / self._observed)
        self._products = [[value * share for value in line] for line in self._products]
        self._answers = [value * share for value in self._answers]
        self._sizes = [value * share for value in self._sizes]
        self._observed *= share

    def _fit(self) -> StepTime:
        """Least squares with one further term for each factor, which pulls it to the prior.

        A factor may leave the prior by about itself or by a tenth of the base time in a step of typical size. So a
        wrong scale is put right mostly in the base, and what the steps seen so far cannot tell keeps its believed
        shape.
        """
        matrix = [list(line) for line in self._products]
        answers = list(self._answers)
        for i, believed in enumerate(self._believed):
            typical = max(1.0, (self._sizes[i] / self._observed) ** 0.5)
            freedom = believed + 0.1 * self._believed[0] / typical
            pull = self._prior_weight * _PRIOR_PULL / (freedom * freedom)
            matrix[i][i] += pull
            answers[i] += pull * believed
        factors = nonnegative_solution(matrix, answers)
        floor = 1e-3 * (self._observed / self._products[0][0]) ** 0.5
        return StepTime(
            max(factors[0], floor), factors[1], factors[2], tuple(zip(self._knees, factors[3:], strict=True))
        )


def nonnegative_solution(matrix: Sequence[Sequence[float]], answers: Sequence[float]) -> list[float]:
    """x >= 0 that minimises x'Ax/2 - b'x for a positive definite A, by active sets (Lawson and Hanson)."""
    size = len(answers)
    x = [0.0] * size
    free: list[int] = []
    for _ in range(3 * size):
        slopes = [answers[i] - sum(matrix[i][j] * x[j] for j in free) for i in range(size)]
        held = [i for i in range(size) if i not in free and slopes[i] > 1e-9 * (abs(answers[i]) + 1e-300)]
        if not held:
            break
        free.append(max(held, key=lambda i: slopes[i] * slopes[i] / matrix[i][i]))
        while True:
            trial = _solved(matrix, answers, free)
            if all(value > 0.0 for value in trial.values()):
                break
            # Walk towards the trial until the first factor reaches zero, and hold that one there.
            share, leaving = min((x[i] / (x[i] - value), i) for i, value in trial.items() if value <= 0.0)
            x = [x[i] + share * (trial[i] - x[i]) if i in trial else 0.0 for i in range(size)]
            x[leaving] = 0.0
            free.remove(leaving)
        x = [trial.get(i, 0.0) for i in range(size)]
    return x


def _solved(matrix: Sequence[Sequence[float]], answers: Sequence[float], free: Sequence[int]) -> dict[int, float]:
    """The unconstrained solution over the `free` unknowns, by elimination on the scaled system."""
    scale = [matrix[i][i] ** -0.5 for i in free]
    lines = [
        [matrix[i][j] * scale[a] * scale[b] for b, j in enumerate(free)] + [answers[i] * scale[a]]
        for a, i in enumerate(free)
    ]
    for a, line in enumerate(lines):
        for below in lines[a + 1 :]:
            factor = below[a] / line[a]
            for column in range(a, len(line)):
                below[column] -= factor * line[column]
    values: list[float] = [0.0] * len(free)
    for a in range(len(free) - 1, -1, -1):
        known = sum(lines[a][b] * values[b] for b in range(a + 1, len(free)))
        values[a] = (lines[a][-1] - known) / lines[a][a]
    return {i: values[a] * scale[a] for a, i in enumerate(free)}
