"""The two pairs of models of the paper, from its published speeds and step times.

Source: Kumar, Dao, May, "Speculative Speculative Decoding" (arXiv 2603.03251): target on 4 H100, draft on one more, one
sequence, greedy, 512 tokens. What went into the numbers below:

published   tokens per second of AR, SD and SSD. That of AR is the target's step time; that of SD gives the acceptance;
            that of SSD goes nowhere but into the comparison.
published   Qwen3-0.6B: 2.54 ms for one step of the draft's tree, by a reproduction that also names K = 4 as its best.
inferred    Llama-3.2-1B: its draft step. A plain CUDA graph of it takes 1.42 ms over 24 tokens on an H200 where
            Qwen3-0.6B takes 1.75; the published step of the latter is 2.54 / 1.75 of that, and the former is taken to
            be the same multiple.
inferred    a step over more tokens: 0.85 % longer for each, as a 32B model's measured between 1 and 8 tokens.
inferred    acceptance: that at which SD at its best K (of 1..8) has the published speed.
inferred    ranks: power law with r = 1.6 behind the first candidate: what a greedy hit rate of .92 to .95 at an
            acceptance of .871, K = 6 and F = 3 comes from (measured with Qwen2.5-Coder 1.5B / 0.5B on code and chat).
inferred    K = 7 for Llama, the reference's default, and F = 3 for both.
inferred    round trip between the engines: 0.1 ms.
"""

from __future__ import annotations

from dataclasses import dataclass

from ssd.simulator.draft import DraftRules
from ssd.simulator.scenario import Scenario
from ssd.simulator.text import GeometricProcess
from ssd.speculation import theory
from ssd.speculation.fan_out import UniformFanOut
from ssd.speculation.prediction import Fallback, Mode, Setting
from ssd.speculation.step_time import StepTime

_PER_TOKEN = 0.0085  # of the target's step
_EXPONENT = 1.6
_ROUND_TRIP_S = 1e-4
_LONGEST_K = 8


@dataclass(frozen=True)
class Pair:
    """Published speeds in tokens per second, and how the reference ran."""

    name: str
    ar: float
    sd: float
    ssd: float
    draft_step_s: float
    k: int
    fan_out: int = 3
    new_tokens: int = 512

    @property
    def target(self) -> StepTime:
        step = 1.0 / self.ar
        return StepTime((1.0 - _PER_TOKEN) * step, 0.0, _PER_TOKEN * step)

    def sd_rate(self, acceptance: float, k: int) -> float:
        """Tokens per second of SD by its closed form."""
        verify, draft = self.target(1, 1 + k), k * self.draft_step_s + _ROUND_TRIP_S
        return theory.sd_speedup(theory.expected_tokens(acceptance, k), draft / verify) / verify

    def sd_k(self, acceptance: float) -> int:
        """The best proposal length of SD."""
        return max(range(1, _LONGEST_K + 1), key=lambda k: self.sd_rate(acceptance, k))

    @property
    def acceptance(self) -> float:
        """What makes the published speed of SD, by bisection."""
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = 0.5 * (low + high)
            if self.sd_rate(middle, self.sd_k(middle)) < self.sd:
                low = middle
            else:
                high = middle
        return 0.5 * (low + high)

    def setting(self, mode: Mode) -> Setting:
        """How the reference runs in a mode."""
        if mode is Mode.SD:
            return Setting(Mode.SD, self.sd_k(self.acceptance))
        if mode is Mode.SSD:
            return Setting(Mode.SSD, self.k, self.fan_out * (self.k + 1), self.k, Fallback.JIT)
        return Setting()

    def scenario(self, mode: Mode | None, seed: int = 0) -> Scenario:
        """The reference in a mode, or (None) its models under our governor and with tables of growing depth."""
        return Scenario(
            target=self.target,
            draft=StepTime(self.draft_step_s),
            process=GeometricProcess(self.acceptance, _EXPONENT),
            round_trip_s=_ROUND_TRIP_S,
            setting=None if mode is None else self.setting(mode),
            fan_out=None if mode is None else UniformFanOut(self.fan_out, self.k),
            rules=DraftRules("half" if mode is None else "whole"),
            new_tokens=self.new_tokens,
            seed=seed,
        )


PAIRS = (
    Pair("llama-70b-1b", 54.7, 161.8, 255.8, draft_step_s=1.42e-3 * 2.54 / 1.75, k=7),
    Pair("qwen3-32b-0.6b", 88.8, 136.8, 203.8, draft_step_s=2.54e-3, k=4),
)
