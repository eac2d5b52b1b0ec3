"""The whole system: it is deterministic, counts right, and serves what comes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ssd.simulator.arrivals import ConstantRows, PoissonArrivals, RowSteps
from ssd.simulator.draft import DraftRules
from ssd.simulator.events import EventQueue
from ssd.simulator.scenario import Scenario
from ssd.simulator.system import System
from ssd.simulator.text import GeometricProcess, TraceProcess
from ssd.speculation.prediction import Fallback, Mode, Setting
from ssd.speculation.step_time import StepTime
from tests.ssd.simulator.closed_forms import VERIFY, speed

SSD = Setting(Mode.SSD, 4, 16, 4)
BASIC = Scenario(
    target=StepTime(VERIFY, 0.0, 1e-5),
    draft=StepTime(0.1 * VERIFY, 0.0, 1e-6),
    process=GeometricProcess(0.8),
    round_trip_s=0.1 * VERIFY,
    arrivals=ConstantRows(3),
    setting=SSD,
    jitter=0.03,
)


def marks(scenario, tokens=1500):
    return System(scenario).run_tokens(tokens)


@pytest.mark.parametrize("setting", [None, SSD, Setting(Mode.SD, 3)])
def test_a_scenario_always_gives_the_same_numbers(setting):
    scenario = replace(BASIC, setting=setting)
    assert marks(scenario) == marks(scenario)
    assert marks(scenario) != marks(replace(scenario, seed=1))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("fallback", [Fallback.NONE, Fallback.JIT])
def test_branches_that_cannot_come_true_change_nothing(rows, fallback):
    scenario = replace(BASIC, arrivals=ConstantRows(rows), setting=replace(SSD, fallback=fallback))
    assert marks(scenario) == marks(replace(scenario, rules=DraftRules(filled=True)))


def test_half_a_table_in_time_is_worth_more_than_a_whole_one_that_is_late():
    deep, slow = replace(SSD, k=6, depth=6), {"t_step": 0.24, "rows": 1}
    whole, half, each = (speed(deep, publish=publish, **slow) for publish in ("whole", "half", "each"))
    assert half > 1.1 * whole and each > 1.1 * whole


def test_a_perfect_draft_commits_whole_proposals():
    found = marks(replace(BASIC, process=TraceProcess(((1,),)), setting=SSD))
    assert found.accepted == found.proposed
    assert found.tokens / found.rounds > 4.9


def test_a_hopeless_draft_commits_a_token_a_round():
    found = marks(replace(BASIC, process=TraceProcess(((0,),)), setting=SSD))
    assert found.tokens == found.rounds and found.accepted == 0 and found.hits == 0


def test_prompt_lookup_serves_rows_that_missed():
    scenario = replace(BASIC, process=TraceProcess(((0,),)), ngram_acceptance=0.8)
    found = marks(replace(scenario, setting=replace(SSD, fallback=Fallback.NGRAM)))
    assert found.tokens / found.rounds > 3.0
    assert marks(replace(scenario, setting=SSD)).tokens == marks(replace(scenario, setting=SSD)).rounds


def test_sequences_end_and_others_take_their_places():
    system = System(replace(BASIC, new_tokens=40, prompt_tokens=100))
    system.run_tokens(2000)
    assert system.live == 3
    assert len(system.cache) <= 3
    assert max(system.targets[0].rows) > 30


def test_several_targets_and_drafts_share_the_rows():
    one = marks(replace(BASIC, arrivals=ConstantRows(8), jitter=0.0), 8000)
    four = System(replace(BASIC, arrivals=ConstantRows(8), targets=2, drafts=2, jitter=0.0))
    found = four.run_tokens(8000)
    assert [len(target.rows) for target in four.targets] == [4, 4]
    assert all(draft.timer.passes > 0 for draft in four.drafts)
    assert found.seconds == pytest.approx(one.seconds, rel=0.05)


def test_without_a_draft_the_governor_decodes_plainly():
    system = System(replace(BASIC, setting=None, drafts=0))
    found = system.run_tokens(600)
    assert set(system.totals.modes) == {Mode.AR} and found.tokens == found.rounds


def test_rows_step_up_and_down():
    system = System(replace(BASIC, arrivals=RowSteps(((0.0, 2), (1.0, 5), (2.0, 1)))))
    lives = []
    for seconds in (0.5, 1.5, 2.5):
        system.run_seconds(seconds)
        lives.append(system.live)
    assert lives == [2, 5, 1]


def test_poisson_arrivals_wait_for_room():
    system = System(replace(BASIC, arrivals=PoissonArrivals(50.0, 4), new_tokens=50))
    lives = set()
    for second in range(1, 20):
        system.run_seconds(0.5 * second)
        lives.add(system.live)
    assert max(lives) == 4


def test_nothing_happens_in_the_past():
    with pytest.raises(ValueError, match="past"):
        EventQueue().after(-1.0, lambda: None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: replace(BASIC, targets=0),
        lambda: replace(BASIC, round_trip_s=-1.0),
        lambda: replace(BASIC, jitter=1.0),
        lambda: replace(BASIC, new_tokens=0),
        lambda: ConstantRows(0),
        lambda: RowSteps(()),
        lambda: RowSteps(((1.0, 2),)),
        lambda: PoissonArrivals(0.0, 1),
        lambda: DraftRules("often"),
    ],
)
def test_impossible_systems_are_refused(make):
    with pytest.raises(ValueError, match="scenario|sequence|row|steps|arrivals|tables"):
        make()
