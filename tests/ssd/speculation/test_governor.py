"""The governor finds the best mode, stays with it, follows changes, and says why."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from ssd.speculation import theory
from ssd.speculation.governor import Governor, GovernorSettings
from ssd.speculation.prediction import Fallback, Limits, Load, Mode, Outlook, Prediction, Setting, best_by_mode
from ssd.speculation.ranks import AcceptanceStatistics
from ssd.speculation.step_time import StepTime, StepTimeFit
from tests.ssd.speculation.governed import TARGET, VERIFY, TrueStatistics, World, best_fixed, draft_for

DEAD_SLOW = draft_for(40.0)


def busy_draft(t_primary):
    """A draft whose time goes into tokens, so that fewer rows are less work."""
    whole = draft_for(t_primary)
    return StepTime(0.1 * whole.base, 0.0, whole.per_token + 0.9 * whole.base / 24)


def governor_for(target=TARGET, draft=None, **options):
    return Governor(StepTimeFit(target), StepTimeFit(draft or draft_for(0.3)), **options)


def outlook_for(truth=None, draft=None, rows=1, **options):
    return Outlook(
        truth or TrueStatistics(0.7),
        TARGET,
        draft or draft_for(0.3),
        Load(rows, options.pop("round_trip", 0.0), options.pop("draft_rows", None)),
        **options,
    )


class ConstantHits:
    """Every outcome is hit with the same probability, so that the closed forms hold exactly."""

    def __init__(self, acceptance, hit_rate):
        self.acceptance, self.hit_rate = acceptance, hit_rate

    def outcome_law(self, depth, *, after_hit=True):
        return TrueStatistics(self.acceptance).outcome_law(depth)

    def coverage_of(self, depth):
        return lambda k, fan_out: self.hit_rate if fan_out else 0.0


# Predictions


def test_predictions_are_the_closed_forms_where_those_apply():
    a, h, k, rtt = 0.8, 0.85, 6, 0.1 * VERIFY
    target, draft = StepTime(VERIFY), StepTime(0.06 * VERIFY)
    alone = Outlook(ConstantHits(a, h), target, draft, Load(1, rtt))
    tokens = theory.expected_tokens(a, k)
    assert alone.predict(Setting()).tokens_per_s * VERIFY == pytest.approx(1.0)
    t_draft = k * 0.06 + 0.1
    assert alone.predict(Setting(Mode.SD, k)).tokens_per_s * VERIFY == pytest.approx(theory.sd_speedup(tokens, t_draft))
    setting = Setting(Mode.SSD, k, 21, k, Fallback.JIT)
    found = alone.predict(setting)
    assert found.hits == pytest.approx(h) and found.table_s == pytest.approx((7 * 0.06 + 0.1) * VERIFY)
    assert found.tokens_per_s * VERIFY == pytest.approx(theory.ssd_speedup(h, tokens, tokens, 0.52, t_draft))
    for t_step, depth in ((0.06, 6), (0.3, 3)):
        many = Outlook(ConstantHits(a, h), target, StepTime(t_step * VERIFY), Load(8))
        per_row = theory.per_row_speedup(h, theory.expected_tokens(a, depth), 1.0, (depth + 1) * t_step)
        riding = replace(setting, fallback=Fallback.NONE, depth=depth)
        assert many.predict(riding).tokens_per_s * VERIFY == pytest.approx(8 * per_row)


def test_a_bottleneck_draft_shortens_tables_before_it_drops_rows():
    depths, works, shares = [], [], []
    for t_primary in (0.05, 0.1, 0.3, 0.6, 1.0, 1.6, 2.5, 4.0, 8.0, 16.0):
        found = best_by_mode(outlook_for(draft=busy_draft(t_primary), rows=16).candidates(Limits()))[Mode.SSD].setting
        depths.append(found.depth)
        works.append(found.draft_work)
        shares.append(found.share)
    undropped = [work for work, share in zip(works, shares, strict=True) if share == 1.0]
    assert undropped == sorted(undropped, reverse=True) and depths[0] >= 4
    assert shares == sorted(shares, reverse=True) and shares[-1] < 1.0
    assert all(depth <= 2 for depth, share in zip(depths, shares, strict=True) if share < 1.0)
    assert any(depth < depths[0] and share == 1.0 for depth, share in zip(depths, shares, strict=True))


def test_a_lone_row_waits_for_proposals_only_if_that_pays():
    quick = max(outlook_for(draft=draft_for(0.1)).candidates(Limits()), key=lambda one: one.tokens_per_s)
    slow = max(outlook_for(draft=draft_for(1.6)).candidates(Limits()), key=lambda one: one.tokens_per_s)
    assert quick.setting.fallback is Fallback.JIT and slow.setting.fallback is Fallback.NONE
    assert all(one.setting.fallback is not Fallback.JIT for one in outlook_for(rows=2).candidates(Limits()))


def test_prompt_lookup_is_the_fallback_where_it_is_good():
    good = best_by_mode(outlook_for(rows=8, ngram_acceptance=0.8).candidates(Limits()))[Mode.SSD]
    bad = best_by_mode(outlook_for(TrueStatistics(0.9), rows=64, ngram_acceptance=0.01).candidates(Limits()))[Mode.SSD]
    assert good.setting.fallback is Fallback.NGRAM
    assert bad.setting.fallback is Fallback.NONE


def test_what_the_target_waits_for_takes_the_time_of_such_passes():
    slow, quick = StepTime(0.2 * VERIFY), StepTime(0.05 * VERIFY)
    settings = [Setting(Mode.SD, 4), Setting(Mode.SSD, 5, 12, 3, Fallback.JIT), Setting(Mode.SSD, 5, 12, 3)]
    before, after = outlook_for(draft=slow), outlook_for(draft=slow, asked=quick)
    for setting, waits in zip(settings, (1.0, None, 0.0), strict=True):
        old, new = before.predict(setting), after.predict(setting)
        share = 1.0 - new.hits if waits is None else waits
        assert old.round_s - new.round_s == pytest.approx(share * setting.k * 0.15 * VERIFY)
        assert old.table_s == new.table_s
    found = {
        asked: best_by_mode(outlook_for(draft=slow, asked=asked, ngram_acceptance=0.1).candidates(Limits()))[Mode.SSD]
        for asked in (None, quick)
    }
    assert [one.setting.fallback is Fallback.JIT for one in found.values()] == [False, True]


def test_only_modes_without_tables_have_the_target_alone():
    ar, sd, ssd = Setting(), Setting(Mode.SD, 4), Setting(Mode.SSD, 5, 12, 3)
    for seconds, counts in ((0.8 * VERIFY, True), (1.2 * VERIFY, False)):
        before, after = outlook_for(rows=4), outlook_for(rows=4, alone=StepTime(seconds))
        assert after.predict(ssd) == before.predict(ssd)
        for setting in (ar, sd):
            assert (after.predict(setting).verify_s == pytest.approx(seconds)) is counts
            assert (after.predict(setting) == before.predict(setting)) is not counts


def test_what_is_nearly_as_fast_and_asks_less_of_the_draft_is_preferred():
    def prediction(rate, budget, share=1.0):
        return Prediction(Setting(Mode.SSD, 4, budget, 4, share=share), rate, 3.0, 0.02, 0.02)

    assert best_by_mode([prediction(100.0, 48), prediction(99.9, 8)])[Mode.SSD].setting.budget == 8
    assert best_by_mode([prediction(100.0, 48), prediction(99.0, 8)])[Mode.SSD].setting.budget == 48
    assert best_by_mode([prediction(100.0, 48, 0.5), prediction(99.0, 8)])[Mode.SSD].setting.share == 1.0
    assert best_by_mode([prediction(100.0, 48, 0.5), prediction(90.0, 8)])[Mode.SSD].setting.share == 0.5


# Throughput


@pytest.mark.parametrize(
    ("rows", "acceptance", "t_primary", "round_trip", "depth", "budget"),
    [(8, 0.7, 1.0, 0.0, 4, 16), (32, 0.7, 0.3, 0.5, 7, 16), (64, 0.9, 1.0, 0.5, 4, 1), (64, 0.9, 1.0, 0.5, 7, 1)],
)
def test_late_tables_cost_the_world_what_the_closed_forms_say(rows, acceptance, t_primary, round_trip, depth, budget):
    """Else the best fixed setting is a yardstick that nobody can reach, or that anybody can."""
    truth, draft, delay = TrueStatistics(acceptance), draft_for(t_primary), round_trip * VERIFY
    setting = Setting(Mode.SSD, depth, budget, depth)
    world = World(truth, draft, delay, fixed=setting)
    world.run(20, rows)
    expected = Outlook(truth, TARGET, draft, Load(rows, delay)).predict(setting).tokens_per_s
    assert world.run(60 + 4000 // rows, rows) == pytest.approx(expected, rel=0.03)


CELLS = [(8, 0.4, 0.3, 0.1), (8, 0.7, 1.0, 0.5), (8, 0.9, 1.6, 0.0), (32, 0.7, 0.3, 0.1), (32, 0.3, 4.0, 0.5)]


def check_cell(rows, acceptance, t_primary, round_trip, warm, measured, share):
    world = World(TrueStatistics(acceptance), draft_for(t_primary), round_trip * VERIFY)
    best, setting = best_fixed(world, rows)
    world.run(warm, rows)
    reached = world.run(measured, rows)
    assert reached >= share * best, f"{reached:.0f} of {best:.0f} tok/s, the best being {setting}"


@pytest.mark.parametrize(("rows", "acceptance", "t_primary", "round_trip"), CELLS)
def test_auto_is_about_as_fast_as_the_best_fixed_setting(rows, acceptance, t_primary, round_trip):
    check_cell(rows, acceptance, t_primary, round_trip, 80, 60 + 800 // rows, 0.96)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16, 32, 64, 128])
@pytest.mark.parametrize("acceptance", [0.4, 0.7, 0.9])
@pytest.mark.parametrize(("t_primary", "round_trip"), list(itertools.product([0.3, 1.0, 1.6], [0.0, 0.1, 0.5])))
def test_auto_is_within_3_percent_of_the_best_fixed_setting_everywhere(rows, acceptance, t_primary, round_trip):
    check_cell(rows, acceptance, t_primary, round_trip, 300 + 2000 // rows, 100 + 6000 // rows, 0.97)


def changes(world, start, row=0):
    """Changes of mode of one row since decision number `start`, trials aside."""
    modes = [chosen[row].mode for chosen in world.decisions[start:] if row in chosen and not chosen[row].probe]
    return sum(one is not other for one, other in itertools.pairwise(modes))


def test_load_steps_up_and_down_bring_neither_flapping_nor_collapse():
    # With this draft speculation pays for two rows and not for many.
    world = World(TrueStatistics(0.5), draft_for(3.7), 0.3 * VERIFY)
    for rows in (2, 64, 2, 64, 2):
        start = len(world.decisions)
        best, _ = best_fixed(world, rows)
        world.run(20, rows)
        assert world.run(400 // rows + 20, rows) >= 0.9 * best
        assert changes(world, start) <= 1
    modes = {rows: best_fixed(world, rows)[1].mode for rows in (2, 64)}
    assert modes == {2: Mode.SSD, 64: Mode.AR}


def test_under_a_steady_load_the_choice_stays():
    world = World(TrueStatistics(0.7), draft_for(1.0), 0.1 * VERIFY)
    world.run(300, 4)
    world.run(500, 4)
    assert changes(world, 300) == 0
    settings = [chosen[0].setting for chosen in world.decisions[300:] if not chosen[0].probe]
    assert sum(one != other for one, other in itertools.pairwise(settings)) <= 4


def test_a_draft_that_slows_down_is_let_go_and_taken_back():
    world = World(TrueStatistics(0.7), draft_for(0.3), 0.0)
    world.run(100, 4)
    assert world.decisions[-1][0].mode is Mode.SSD
    world.draft = DEAD_SLOW
    world.run(150, 4)
    assert {decision.mode for decision in world.decisions[-1].values()} == {Mode.AR}
    world.draft = draft_for(0.3)
    world.run(800, 4)
    assert {decision.mode for decision in world.decisions[-1].values()} == {Mode.SSD}


def test_an_acceptance_that_rises_is_noticed_while_speculation_is_off():
    world = World(TrueStatistics(0.02), draft_for(5.0), 0.2 * VERIFY)
    world.run(150, 4)
    assert {decision.mode for decision in world.decisions[-1].values() if not decision.probe} == {Mode.AR}
    world.truth = TrueStatistics(0.95)
    world.run(1000, 4)
    assert {decision.mode for decision in world.decisions[-1].values()} == {Mode.SSD}


@pytest.mark.parametrize(("rows", "rounds", "draft"), [(1, 3000, DEAD_SLOW), (8, 600, draft_for(4.0))])
def test_trials_cost_no_more_than_their_share(rows, rounds, draft):
    world = World(TrueStatistics(0.1), draft, 0.0)
    world.run(100, rows)
    plain = rows / TARGET(rows, rows)
    assert world.run(rounds, rows) >= 0.97 * plain
    trials = [chosen[row].probe for chosen in world.decisions[100:] for row in chosen]
    assert 0 < sum(trials) < 0.15 * len(trials)


def test_a_lone_row_tries_a_slow_draft_the_more_often_the_less_it_has_to_wait():
    def rounds_between_trials(longest_wait):
        governor = governor_for(draft=DEAD_SLOW)
        load = Load(1, longest_wait=longest_wait)
        tried = [governor.decide(1, TrueStatistics(0.3), load).probe for _ in range(8_000)]
        return len(tried) / max(1, sum(tried))

    assert rounds_between_trials(0.5 * VERIFY) < 0.2 * rounds_between_trials(math.inf)


def own_times(asked=0.001, draft=None, seen=0, **options):
    """A governor that is told of awaited passes and undisturbed steps by themselves, of which so many were seen."""
    beside, awaited = draft or draft_for(0.3), StepTimeFit(StepTime(0.002))
    fits = [StepTimeFit(TARGET), StepTimeFit(beside), StepTimeFit(TARGET)]
    for fit, times in zip(fits, (TARGET, beside, TARGET), strict=True):
        fit.observe(1, 5, times(1, 5))
    for _ in range(seen):
        awaited.observe(1, 1, asked)
    return Governor(*fits[:2], **options, asked=awaited, alone=fits[2])


def begins(governor, load=None, sequences=20):
    """How many rounds of the first ones of new sequences are for a start."""
    made = [governor.decide(row, TrueStatistics(0.9), load or Load(1)) for row in range(sequences)]
    return sum("for a start" in decision.reason and decision.mode is Mode.SD and decision.probe for decision in made)


def test_a_lone_row_begins_with_what_nothing_else_shows():
    assert begins(own_times()) == GovernorSettings().start_passes
    assert begins(own_times(seen=5)) == GovernorSettings().start_passes
    assert begins(own_times(seen=8)) == 0
    assert begins(governor_for()) == 0, "nobody looks at awaited passes by themselves"
    assert begins(own_times(), Load(2)) == begins(own_times(), Load(1, draft_rows=0)) == 0
    assert begins(own_times(limits=Limits(fallbacks=frozenset({Fallback.NONE})))) == 0
    assert begins(own_times(limits=Limits(modes=frozenset({Mode.AR, Mode.SSD})))) == 0
    assert own_times(limits=Limits(max_k=2)).decide(1, TrueStatistics(0.9), Load(1)).k == 2


def test_nobody_begins_with_waits_that_are_known_to_be_long():
    assert begins(own_times(seen=1, asked=VERIFY)) == 0
    assert begins(own_times(draft=StepTime(VERIFY))) == 0
    assert begins(own_times(), Load(1, longest_wait=0.1 * VERIFY)) == 0
    assert begins(own_times(), Load(1, round_trip=3 * VERIFY)) == 0


def test_in_ssd_a_lone_row_tries_proposals_if_their_times_are_known_by_themselves():
    def trials(governor, rows):
        made = [governor.decide(row, TrueStatistics(0.9), Load(rows)) for _ in range(600) for row in range(rows)]
        assert {decision.mode for decision in made if not decision.probe} == {Mode.SSD}
        return sum(decision.mode is Mode.SD for decision in made)

    assert 8 <= trials(own_times(seen=8), 1) < 90
    assert 0 < trials(own_times(seen=8, asked=0.6 * VERIFY), 1) <= 8, "the longer the wait, the fewer"
    assert trials(own_times(seen=8), 2) == trials(governor_for(), 1) == 0


def test_all_rows_vary_their_depth_together_now_and_then():
    governor = governor_for(draft=draft_for(0.3), settings=GovernorSettings(sweep_every=40, sweep_rounds=2))
    chosen = [[governor.decide(row, TrueStatistics(0.3), Load(3)) for row in range(3)] for _ in range(400)]
    usual = chosen[0][0].depth
    varied = [batch for batch in chosen if any(decision.probe for decision in batch)]
    assert 10 <= len(varied) <= 30
    assert {decision.depth < usual for batch in varied for decision in batch if decision.probe} == {True, False}
    assert sum(all(decision.probe for decision in batch) for batch in varied) >= len(varied) // 2
    assert all(decision.depth == usual for batch in chosen for decision in batch if not decision.probe)


# Decisions


def test_a_decision_explains_itself():
    governor = governor_for()
    decision = governor.decide(7, TrueStatistics(0.8), Load(4, 0.001))
    assert decision.mode is Mode.SSD and decision.k >= decision.depth >= 1
    assert len(decision.fan_out) == decision.depth + 1 and sum(decision.fan_out) == decision.budget
    assert set(decision.predicted) == set(Mode)
    assert max(decision.predicted.values()) == decision.predicted[Mode.SSD]
    assert 0 < decision.t_primary <= 1.1 and 0 < decision.hit_rate < 1
    for part in ("ssd depth=", "tok/s", "hit rate", "T_p", "ar ", "sd "):
        assert part in decision.reason
    assert governor.last(7) is decision and governor.last(8) is None
    assert "kept" not in decision.reason


def test_a_small_gain_changes_nothing_at_once_and_says_so():
    governor = governor_for(draft=draft_for(1.0))
    load = Load(8)
    first = governor.decide(1, TrueStatistics(0.7), load)
    later = [governor.decide(1, TrueStatistics(0.72), load) for _ in range(17)][-1]
    assert later.setting == first.setting
    changed = [governor.decide(1, TrueStatistics(0.9), load) for _ in range(60)][-1]
    assert changed.setting != first.setting


@pytest.mark.parametrize(("before", "after", "depths"), [(0.92, 0.8975, (7, 3)), (0.88, 0.91, (3, 3))])
def test_a_small_gain_is_enough_for_less_work_of_the_draft(before, after, depths):
    """After the change of acceptance the other depth, 3 or 7, is better by less than half a percent."""
    governor, load = governor_for(draft=draft_for(1.6)), Load(4, 0.5 * VERIFY)
    first = governor.decide(1, TrueStatistics(before), load)
    later = [governor.decide(1, TrueStatistics(after), load) for _ in range(1000)]
    last = [decision for decision in later if not decision.probe][-1]
    assert (first.depth, last.depth) == depths


def test_without_a_draft_rows_decode_plainly_whatever_the_limits_say():
    for modes in (frozenset(Mode), frozenset({Mode.SSD})):
        governor = governor_for(limits=Limits(modes=modes))
        assert governor.decide(1, TrueStatistics(0.9), Load(4)).mode is Mode.SSD
        without = [governor.decide(1, TrueStatistics(0.9), Load(4, draft_rows=0)) for _ in range(400)]
        assert {decision.mode for decision in without} == {Mode.AR}
        assert not any(decision.probe for decision in without)
        assert governor.decide(1, TrueStatistics(0.9), Load(4)).mode is Mode.SSD


@pytest.mark.parametrize("modes", [{Mode.AR}, {Mode.SD}, {Mode.SSD}, {Mode.AR, Mode.SD}])
def test_only_allowed_modes_are_chosen_or_tried(modes):
    governor = governor_for(draft=draft_for(2.0), limits=Limits(modes=frozenset(modes), max_k=3, max_budget=10))
    for acceptance in (0.05, 0.9):
        for _ in range(300):
            decision = governor.decide(1, TrueStatistics(acceptance), Load(2))
            assert decision.mode in modes and decision.k <= 3 and decision.budget <= 10


def test_a_share_is_the_same_rows_and_as_many_as_it_says():
    governor = governor_for(draft=busy_draft(4.0))
    load, truth = Load(32), TrueStatistics(0.8)
    for _ in range(3 * 16):
        chosen = {row: governor.decide(row, truth, load) for row in range(32)}
    drafted = {row for row, decision in chosen.items() if decision.mode is Mode.SSD}
    shares = {chosen[row].setting.share for row in drafted}
    assert len(shares) == 1
    share = shares.pop()
    assert share < 1.0 and len(drafted) == math.ceil(32 * share)
    for _ in range(40):
        chosen = {row: governor.decide(row, truth, load) for row in range(32)}
    assert drafted == {row for row, decision in chosen.items() if decision.mode is Mode.SSD and not decision.probe}
    left_out = next(decision for decision in chosen.values() if decision.mode is Mode.AR)
    assert "room for" in left_out.reason


def test_a_lone_row_that_waited_for_proposals_stops_that_when_company_comes():
    governor = governor_for(draft=draft_for(0.1))
    assert governor.decide(1, TrueStatistics(0.7), Load(1)).fallback is Fallback.JIT
    assert governor.decide(1, TrueStatistics(0.7), Load(2)).fallback is not Fallback.JIT


def test_sequences_differ_when_their_acceptances_do():
    workload = AcceptanceStatistics()
    good, bad = AcceptanceStatistics(parent=workload), AcceptanceStatistics(parent=workload)
    for _ in range(200):
        good.observe(6, 6, 1)
        bad.observe(0, 6, None, listed=4)
    governor = governor_for(target=StepTime(VERIFY, 0.0, 2e-4), draft=draft_for(1.0))
    load = Load(8)
    eager, shy = governor.decide(1, good, load), governor.decide(2, bad, load)
    assert eager.mode is Mode.SSD and eager.depth >= 4
    assert shy.mode is Mode.AR or shy.depth < eager.depth


def test_what_has_ended_is_forgotten():
    governor = governor_for()
    governor.decide(1, TrueStatistics(0.7), Load(1))
    governor.forget(1)
    governor.forget(2)
    assert governor.last(1) is None


def test_decisions_are_a_function_of_what_was_seen():
    def run():
        world = World(TrueStatistics(0.6), draft_for(0.8), 0.1 * VERIFY)
        world.run(60, 3)
        return [decision for chosen in world.decisions for decision in chosen.values()]

    assert run() == run()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Load(0),
        lambda: Load(1, -0.1),
        lambda: Load(1, 0.0, -1),
        lambda: Load(1, longest_wait=-1.0),
        lambda: Limits(modes=frozenset()),
        lambda: Limits(max_k=0),
        lambda: GovernorSettings(review_every=0),
        lambda: GovernorSettings(load_change=1.0),
        lambda: GovernorSettings(probe_cost=0.0),
        lambda: GovernorSettings(slack=-0.1),
    ],
)
def test_impossible_settings_are_refused(make):
    with pytest.raises(ValueError, match="load|limits|governor"):
        make()
