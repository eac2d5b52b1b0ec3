"""Simple systems, and what the closed forms need to know of them."""

from __future__ import annotations

from ssd.simulator.arrivals import ConstantRows
from ssd.simulator.draft import DraftRules
from ssd.simulator.scenario import Scenario
from ssd.simulator.system import System
from ssd.simulator.text import GeometricProcess
from ssd.speculation.allocation import outcome_law
from ssd.speculation.fan_out import ExplicitFanOut
from ssd.speculation.step_time import StepTime

VERIFY = 0.02
TOKENS = 15_000


def speed(setting, *, acceptance=0.8, t_step=0.05, round_trip=0.0, rows=1, publish="half", push=True, **options):
    """Tokens per verification and row: the speed-up over plain decoding, as time depends on nothing."""
    scenario = Scenario(
        target=StepTime(VERIFY),
        draft=StepTime(t_step * VERIFY),
        process=GeometricProcess(acceptance),
        round_trip_s=round_trip * VERIFY,
        arrivals=ConstantRows(rows),
        setting=setting,
        rules=DraftRules(publish, push),
        **options,
    )
    system = System(scenario)
    first, last = system.run_tokens(0.1 * TOKENS), system.run_tokens(1.1 * TOKENS)
    return (last.tokens - first.tokens) / (last.seconds - first.seconds) * VERIFY / rows


def fan_out_of(*numbers):
    """F_0..F_K after hits and after just-in-time proposals; all of it at k = 0 with nothing in flight."""
    return ExplicitFanOut(numbers)


def hit_rate(acceptance, fan_outs):
    """h of a round with a proposal of len(fan_outs) - 1 tokens."""
    process, depth = GeometricProcess(acceptance), len(fan_outs) - 1
    law = outcome_law([acceptance] * depth)
    return sum(p * process.covered(f, bonus=k == depth) for k, (p, f) in enumerate(zip(law, fan_outs, strict=True)))


def stationary_hit_rate(acceptance, fan_outs):
    """Share of hits where a miss is followed by a plain round, whose table has all branches at k = 0."""
    after_hit = hit_rate(acceptance, fan_outs)
    after_miss = GeometricProcess(acceptance).covered(sum(fan_outs), bonus=True)
    return after_miss / (after_miss + 1.0 - after_hit)
