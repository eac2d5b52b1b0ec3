"""What goes into the drawing of one token, and what comes out. Free of torch, so that the router can check requests."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ssd.errors import FieldError

MAX_TEMPERATURE = 100.0
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.01, 10.0  # less would overflow a logit
MAX_ADDITIVE_PENALTY = 2.0
MAX_LOGIT_BIAS = 100.0
MAX_LOGPROBS = 20
SEED_SPACE = 1 << 64


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Everything that the drawing of a token depends on besides logits, position and history.

    temperature          0 = greedy (filters and noise are not used); else [0, 100]
    top_k                keep the k most likely tokens, 0 = off
    top_p                keep the smallest set whose mass reaches p, in (0, 1], 1 = off
    min_p                keep tokens at least min_p times as likely as the likeliest, in [0, 1], 0 = off
    repetition_penalty   divides positive, multiplies negative logits of prompt and output tokens, in [.01, 10], 1 = off
    presence_penalty     subtracted once from tokens of the output, in [-2, 2]
    frequency_penalty    subtracted once per occurrence in the output, in [-2, 2]
    logit_bias           (token id, addend in [-100, 100]) pairs, each id once
    seed                 unsigned 64 bit
    logprobs             -1 = none, n = the chosen token and the top n, at most 20
    min_tokens           stop tokens are forbidden before this many tokens were generated
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    logprobs: int = -1
    min_tokens: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def filtered(self) -> bool:
        """True when a filter may remove tokens from a sampled row."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)

    @property
    def counts_output(self) -> bool:
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def validate(self, vocab_size: int) -> None:
        """Raise FieldError, naming the field of the public API, for the first value that cannot be honoured."""
        _check_range("temperature", self.temperature, 0.0, MAX_TEMPERATURE)
        _check_count("top_k", self.top_k)
        _check_range("top_p", self.top_p, 0.0, 1.0, low_excluded=True)
        _check_range("min_p", self.min_p, 0.0, 1.0)
        _check_range("repetition_penalty", self.repetition_penalty, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
        _check_range("presence_penalty", self.presence_penalty, -MAX_ADDITIVE_PENALTY, MAX_ADDITIVE_PENALTY)
        _check_range("frequency_penalty", self.frequency_penalty, -MAX_ADDITIVE_PENALTY, MAX_ADDITIVE_PENALTY)
        self._check_logit_bias(vocab_size)
        if not 0 <= self.seed < SEED_SPACE:
            raise FieldError("seed", f"must be an unsigned 64-bit integer, got {self.seed}")
        if not -1 <= self.logprobs <= MAX_LOGPROBS:
            raise FieldError("logprobs", f"must be between 0 and {MAX_LOGPROBS}, or -1 for none; got {self.logprobs}")
        _check_count("min_tokens", self.min_tokens)

    def _check_logit_bias(self, vocab_size: int) -> None:
        seen: set[int] = set()
        for token, bias in self.logit_bias:
            if not 0 <= token < vocab_size:
                raise FieldError("logit_bias", f"token id {token} is outside the vocabulary of {vocab_size} tokens")
            if token in seen:
                raise FieldError("logit_bias", f"token id {token} appears twice")
            seen.add(token)
            _check_range("logit_bias", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)


@dataclass(frozen=True, slots=True)
class Draw:
    """One drawn token.

    Logprobs are natural logarithms under the model's raw law: the log-softmax of its logits before bias, penalties,
    temperature and filters. They are None / empty unless the request asked for them. Rank 1 is the most likely token;
    equal logits rank by id.
    """

    id: int
    logprob: float | None = None
    rank: int | None = None
    top: tuple[tuple[int, float], ...] = ()


def _check_range(field: str, value: float, low: float, high: float, *, low_excluded: bool = False) -> None:
    if not math.isfinite(value):
        raise FieldError(field, f"must be a finite number, got {value}")
    if value < low or value > high or (low_excluded and value == low):
        raise FieldError(field, f"must be in {'(' if low_excluded else '['}{low:g}, {high:g}], got {value:g}")


def _check_count(field: str, value: int) -> None:
    if value < 0:
        raise FieldError(field, f"must not be negative, got {value}")
