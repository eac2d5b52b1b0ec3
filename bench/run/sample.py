"""Numbers of one measurement, and what several of them say together."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.run.cases import Case
from bench.run.counters import Counters
from ssd.cli.client import Answer


@dataclass(frozen=True)
class Sample:
    """One run over the prompts in one setting. Counts are sums over its generations.

    seconds         from the first request to the last answer
    first_token_s   median over generations; stream_tok_s: median of a stream's own speed after its first token
    """

    seconds: float
    tokens: int
    prompt_tokens: int
    rounds: int
    proposed: int
    accepted: int
    hits: int
    misses: int
    jit_rounds: int
    ngram_rounds: int
    plain_rounds: int
    first_token_s: float
    stream_tok_s: float
    counters: Counters = field(default_factory=Counters)

    @classmethod
    def of(cls, answers: Sequence[Answer], seconds: float, counters: Counters) -> Sample:
        """Add up answers, of which there is at least one."""
        usages = [answer.usage for answer in answers]
        speeds = [
            (answer.usage.completion_tokens - 1) / (answer.seconds - answer.first_token_s)
            for answer in answers
            if answer.usage.completion_tokens > 1 and answer.seconds > answer.first_token_s
        ]
        return cls(
            seconds=seconds,
            tokens=sum(usage.completion_tokens for usage in usages),
            prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            rounds=sum(usage.rounds for usage in usages),
            proposed=sum(usage.proposed for usage in usages),
            accepted=sum(usage.accepted for usage in usages),
            hits=sum(usage.hits for usage in usages),
            misses=sum(usage.misses for usage in usages),
            jit_rounds=sum(usage.jit_rounds for usage in usages),
            ngram_rounds=sum(usage.ngram_rounds for usage in usages),
            plain_rounds=sum(usage.plain_rounds for usage in usages),
            first_token_s=statistics.median(answer.first_token_s for answer in answers),
            stream_tok_s=statistics.median(speeds) if speeds else 0.0,
            counters=counters,
        )

    @property
    def tok_s(self) -> float:
        """Tokens a second of all streams together, prompts included in the time."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Result:
    """All samples of one case. Speeds are medians over samples, everything else is over all rounds of all samples."""

    case: Case
    samples: tuple[Sample, ...]

    @property
    def tok_s(self) -> float:
        return statistics.median(sample.tok_s for sample in self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        """Slowest and fastest sample, tokens a second."""
        speeds = [sample.tok_s for sample in self.samples]
        return min(speeds), max(speeds)

    @property
    def stream_tok_s(self) -> float:
        return statistics.median(sample.stream_tok_s for sample in self.samples)

    @property
    def first_token_s(self) -> float:
        return statistics.median(sample.first_token_s for sample in self.samples)

    @property
    def acceptance(self) -> float | None:
        """Accepted of all verified draft tokens."""
        return self._ratio("accepted", "proposed")

    @property
    def hit_rate(self) -> float | None:
        """Outcomes that were in the speculation cache when they were needed. Of SSD, and AUTO as far as it ran SSD."""
        hits, misses = self._sum("hits"), self._sum("misses")
        return hits / (hits + misses) if hits + misses and self.case.mode in ("ssd", "auto") else None

    @property
    def tokens_per_round(self) -> float | None:
        """E: tokens of one stream for each target step that it took part in."""
        return self._ratio("tokens", "rounds")

    @property
    def counters(self) -> Counters:
        total = Counters()
        for sample in self.samples:
            total = total.plus(sample.counters)
        return total

    @property
    def t_p(self) -> float | None:
        """Time of one table in target steps, as K + 1 passes of the draft; only where K is fixed and tables are
        made."""
        verify, draft = self.counters.verify_ms, self.counters.draft_ms
        if self.case.mode != "ssd" or self.case.k is None or not verify or not draft:
            return None
        return (self.case.k + 1) * draft / verify

    def _ratio(self, part: str, whole: str) -> float | None:
        total = self._sum(whole)
        return self._sum(part) / total if total else None

    def _sum(self, name: str) -> int:
        return sum(getattr(sample, name) for sample in self.samples)
