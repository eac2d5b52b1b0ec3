"""What is learnt from tables that are late, or are not."""

import random

import pytest

from ssd.speculation.prediction import Lateness


def test_lateness_settles_where_as_many_tables_are_late_as_are_expected():
    lateness, source = Lateness(), random.Random(1)
    for _ in range(2000):
        # Tables take 1.2 times what is known, of a step that is 1.1 times that long: the ramp of what is expected.
        expected = min(1.0, max(0.0, (lateness.slowness / 1.1 - 0.97) / 0.065))
        lateness.observe(source.random() < min(1.0, max(0.0, (1.2 / 1.1 - 0.97) / 0.065)), expected)
    assert 1.1 < lateness.slowness <= 1.2


def test_lateness_goes_back_where_nothing_is_late_and_stays_within_bounds():
    lateness = Lateness()
    for _ in range(300):
        lateness.observe(late=True, expected=0.0)
    assert lateness.slowness == lateness.bounds[1]
    for _ in range(1500):
        lateness.observe(late=False, expected=0.0)
    assert lateness.slowness == pytest.approx(1.0, abs=0.01)
    for _ in range(300):
        lateness.observe(late=False, expected=1.0)
    assert lateness.slowness == lateness.bounds[0]
