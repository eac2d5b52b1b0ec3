"""Counters, samples and what is derived from them."""

import pytest
from prometheus_client import generate_latest

from bench.run.cases import Case
from bench.run.counters import Counters, parse
from bench.run.sample import Result, Sample
from ssd.telemetry.metrics import Metrics
from tests.bench.run.answers import answer, result


def test_step_times_are_read_without_prefill():
    metrics = Metrics()
    for seconds, prefill in ((0.02, "no"), (0.04, "no"), (9.0, "yes")):
        metrics.verify.labels(prefill).observe(seconds)
    metrics.draft.labels("no").observe(0.005)
    sums, modes = parse(generate_latest(metrics.registry).decode())
    assert sums["ssd_verify_seconds_sum"] == pytest.approx(0.06) and sums["ssd_verify_seconds_count"] == 2
    assert sums["ssd_draft_seconds_count"] == 1 and modes == {}


def test_rounds_of_auto_are_read_by_mode():
    text = '# TYPE ssd_governor_rounds counter\nssd_governor_rounds_total{mode="sd"} 3.0\n'
    assert parse(text)[1] == {"sd": 3.0}


def test_counters_subtract_and_add():
    before = Counters(1.0, 10, 0.5, 20, {"sd": 2.0}, 1, 0)
    after = Counters(1.4, 20, 0.6, 60, {"sd": 5.0, "ssd": 4.0}, 2, 3)
    since = after.since(before)
    assert (since.verify_ms, since.draft_ms) == (pytest.approx(40.0), pytest.approx(2.5))
    assert since.draft_share == pytest.approx(0.25)
    assert since.modes == {"sd": 3.0, "ssd": 4.0} and (since.preemptions, since.draft_preemptions) == (1, 3)
    both = since.plus(since)
    assert both.verify_steps == 20 and both.modes["ssd"] == 8.0
    assert Counters().verify_ms is None and Counters().draft_share is None


def test_a_sample_adds_up_its_answers():
    one = answer(range(11), seconds=2.5, first_token_s=0.5, rounds=4, proposed=12, accepted=7, hits=3, misses=1)
    other = answer(range(21), seconds=4.5, first_token_s=0.5, rounds=6, proposed=18, accepted=8, hits=1, misses=5)
    sample = Sample.of([one, other], 4.0, Counters())
    assert (sample.tokens, sample.rounds, sample.tok_s) == (32, 10, 8.0)
    assert sample.stream_tok_s == pytest.approx(5.0)
    found = Result(Case(2, 0.0, "ssd", 3), (sample,))
    assert (found.acceptance, found.hit_rate, found.tokens_per_round) == (0.5, 0.4, 3.2)


def test_a_speed_is_the_median_of_its_samples():
    samples = tuple(result("ar", speed).samples[0] for speed in (10.0, 30.0, 11.0))
    found = Result(Case(1, 0.0, "ar"), samples)
    assert found.tok_s == pytest.approx(11.0) and found.spread == (pytest.approx(10.0), pytest.approx(30.0))
    assert found.acceptance is None and found.hit_rate is None


def test_t_p_is_a_table_of_k_and_one_passes_in_target_steps():
    counters = Counters(verify_s=1.0, verify_steps=50, draft_s=0.2, draft_passes=100)
    assert result("ssd", 50, k=4, counters=counters).t_p == pytest.approx(5 * 2.0 / 20.0)
    assert result("sd", 50, k=4, counters=counters).t_p is None
    assert result("ssd", 50, k=4).t_p is None
