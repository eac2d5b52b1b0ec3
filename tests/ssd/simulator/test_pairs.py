"""The paper's two pairs come out within 10 % of what was published, from inputs that do not hold the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ssd.simulator.pairs import PAIRS, Pair
from ssd.simulator.report import simulate
from ssd.speculation.prediction import Mode

TOKENS = 12_000


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: pair.name)
def measured(request):
    pair = request.param
    return pair, {mode: simulate(pair.scenario(mode), TOKENS).tokens_per_s for mode in (*Mode, None)}


def test_ratios_are_within_10_percent_of_the_published_ones(measured):
    pair, rates = measured
    assert rates[Mode.SSD] / rates[Mode.SD] == pytest.approx(pair.ssd / pair.sd, rel=0.10)
    assert rates[Mode.SSD] / rates[Mode.AR] == pytest.approx(pair.ssd / pair.ar, rel=0.10)


def test_plain_and_speculative_decoding_are_what_the_inputs_say(measured):
    pair, rates = measured
    assert rates[Mode.AR] == pytest.approx(pair.ar, rel=0.01)
    assert rates[Mode.SD] == pytest.approx(pair.sd, rel=0.03)


def test_the_governor_is_at_least_as_fast_as_the_reference(measured):
    _, rates = measured
    assert rates[None] >= 0.97 * rates[Mode.SSD]


def test_the_published_speed_of_ssd_is_no_input():
    pair = PAIRS[0]
    other = replace(pair, ssd=1.0)
    assert other.scenario(Mode.SSD) == pair.scenario(Mode.SSD)


def test_the_inferred_acceptance_makes_the_published_speed_of_sd():
    pair = Pair("some", 50.0, 120.0, 0.0, 2e-3, 6)
    assert pair.sd_rate(pair.acceptance, pair.sd_k(pair.acceptance)) == pytest.approx(120.0, rel=1e-6)
