"""The simulator gives the closed forms where they apply: all within 2 %."""

from __future__ import annotations

import pytest

from ssd.speculation import theory
from ssd.speculation.prediction import Fallback, Mode, Setting
from tests.ssd.simulator.closed_forms import fan_out_of, hit_rate, speed, stationary_hit_rate

FAN_OUT = (4, 3, 3, 3, 2, 2, 4)
CLOSE = 0.02


def ssd(depth=6, fallback=Fallback.NONE):
    return Setting(Mode.SSD, depth, 21, depth, fallback)


def test_plain_decoding_gives_one_token_a_step():
    assert speed(Setting()) == pytest.approx(1.0)
    assert speed(Setting(), rows=8) == pytest.approx(1.0)


@pytest.mark.parametrize("acceptance", [0.5, 0.8, 0.9])
@pytest.mark.parametrize(("k", "t_step", "round_trip", "rows"), [(3, 0.05, 0.0, 1), (6, 0.2, 0.1, 1), (4, 0.1, 0.5, 4)])
def test_speculative_decoding(acceptance, k, t_step, round_trip, rows):
    found = speed(Setting(Mode.SD, k), acceptance=acceptance, t_step=t_step, round_trip=round_trip, rows=rows)
    tokens = theory.expected_tokens(acceptance, k)
    assert found == pytest.approx(theory.sd_speedup(tokens, k * t_step + round_trip), rel=CLOSE)


@pytest.mark.parametrize("acceptance", [0.5, 0.8, 0.9])
@pytest.mark.parametrize(("t_step", "round_trip"), [(0.05, 0.0), (0.05, 0.3), (0.1, 0.2), (0.14, 0.0)])
def test_a_lone_row_with_just_in_time_proposals(acceptance, t_step, round_trip):
    found = speed(
        ssd(fallback=Fallback.JIT),
        acceptance=acceptance,
        t_step=t_step,
        round_trip=round_trip,
        fan_out=fan_out_of(*FAN_OUT),
    )
    tokens = theory.expected_tokens(acceptance, 6)
    hits = hit_rate(acceptance, FAN_OUT)
    form = theory.ssd_speedup(hits, tokens, tokens, 7 * t_step, 6 * t_step + round_trip)
    assert found == pytest.approx(form, rel=CLOSE)


@pytest.mark.parametrize("acceptance", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("rows", [1, 2, 16])
def test_a_fallback_per_row_costs_the_others_nothing(acceptance, rows):
    found = speed(ssd(), acceptance=acceptance, round_trip=0.3, rows=rows, fan_out=fan_out_of(*FAN_OUT))
    hits = stationary_hit_rate(acceptance, FAN_OUT)
    form = theory.per_row_speedup(hits, theory.expected_tokens(acceptance, 6), 1.0, 7 * 0.05)
    assert found == pytest.approx(form, rel=CLOSE)


@pytest.mark.parametrize("t_step", [0.2, 0.25])
def test_a_slow_draft_sets_the_pace_of_rows_that_hit(t_step):
    # Full coverage, so that all rows hit all the time: T_p > 1 is then all that there is.
    found = speed(ssd(), t_step=t_step, rows=4, publish="whole", fan_out=fan_out_of(*[100_000] * 7))
    form = theory.per_row_speedup(1.0, theory.expected_tokens(0.8, 6), 1.0, 7 * t_step)
    assert found == pytest.approx(form, rel=CLOSE)


def rounds(push, t_step, round_trip):
    """Length of a round in which every outcome is anticipated."""
    options = {"publish": "whole", "fan_out": fan_out_of(*[100_000] * 7)}
    found = speed(ssd(), t_step=t_step, round_trip=round_trip, push=push, **options)
    return theory.expected_tokens(0.8, 6) / found


@pytest.mark.parametrize(("t_step", "round_trip"), [(0.05, 0.1), (0.1, 0.3), (0.1, 0.5), (0.2, 0.1), (0.3, 0.5)])
def test_asking_for_proposals_costs_a_round_trip_unless_the_draft_is_slower(t_step, round_trip):
    assert rounds(False, t_step, round_trip) == pytest.approx(theory.ask_round(7 * t_step, round_trip), rel=CLOSE)


@pytest.mark.parametrize(("t_step", "round_trip"), [(0.05, 0.1), (0.05, 0.5), (0.1, 0.3)])
def test_pushed_tables_hide_the_round_trip(t_step, round_trip):
    form = theory.push_round(7 * t_step, round_trip)
    assert form == 1.0 and rounds(True, t_step, round_trip) == pytest.approx(form, rel=CLOSE)


@pytest.mark.parametrize(("t_step", "round_trip"), [(0.1, 0.5), (0.13, 0.3), (0.15, 0.5)])
def test_a_pushed_table_that_is_late_makes_half_of_the_delay_good(t_step, round_trip):
    # The draft hears of an outcome while the target still waits, and begins the next table earlier by that.
    form = theory.push_round(7 * t_step, round_trip)
    found = rounds(True, t_step, round_trip)
    assert found == pytest.approx(max(0.5 * (1.0 + form), 7 * t_step), rel=CLOSE)
    assert found < form


@pytest.mark.parametrize("t_step", [0.05, 0.1, 0.13, 0.15, 0.2])
def test_pushing_beats_asking_exactly_for_tables_faster_than_a_step(t_step):
    if theory.pushing_wins(7 * t_step):
        assert rounds(True, t_step, 0.2) < rounds(False, t_step, 0.2)
    assert rounds(True, t_step, 0.2) <= rounds(False, t_step, 0.2) * (1.0 + CLOSE)
