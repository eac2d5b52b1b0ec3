"""What is combined, and in which order it is measured."""

import pytest

from bench.run.cases import Case, Grid, schedule
from ssd.errors import FieldError


def test_sd_is_measured_for_every_k_and_ssd_for_every_table():
    grid = Grid(ks=(2, 4), ssd_ks=(4,), fan_outs=(1, 3), budgets=(21,))
    assert [case.label for case in grid.cases()] == [
        "AR",
        "SD K=2",
        "SD K=4",
        "SSD K=4 F=1",
        "SSD K=4 F=3",
        "SSD K=4 B=21",
        "AUTO",
    ]


def test_ssd_takes_sds_lengths_and_the_servers_table_where_nothing_else_is_said():
    cases = Grid(modes=("ssd",), ks=(2, 3)).cases()
    assert cases == [Case(1, 0.0, "ssd", 2), Case(1, 0.0, "ssd", 3)]


def test_batches_and_temperatures_multiply_and_a_mode_named_twice_is_measured_once():
    cases = Grid(modes=("ar", "ar"), batches=(1, 8), temperatures=(0.0, 0.7)).cases()
    assert [(case.batch, case.temperature) for case in cases] == [(1, 0.0), (1, 0.7), (8, 0.0), (8, 0.7)]


def test_repeats_go_to_and_fro():
    cases = Grid(modes=("ar", "auto")).cases()
    order = [(repeat, case.mode) for repeat, case in schedule(cases, 3)]
    assert order == [(0, "ar"), (0, "auto"), (1, "auto"), (1, "ar"), (2, "ar"), (2, "auto")]


def test_a_case_becomes_a_request():
    options = Case(8, 0.7, "ssd", 6, budget=21).options(seed=5, max_tokens=64, ignore_eos=True)
    assert (options.mode, options.k, options.budget, options.fan_out) == ("ssd", 6, 21, None)
    assert (options.temperature, options.seed, options.max_tokens, options.ignore_eos) == (0.7, 5, 64, True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"modes": ("fast",)}, "modes: no mode 'fast'"),
        ({"batches": (0,)}, "batches: must be at least 1"),
        ({"temperatures": (-1.0,)}, "temperatures: must not be negative"),
        ({"batches": ()}, "batches: at least one"),
        ({"ks": ()}, "k: SD and SSD need at least one"),
    ],
)
def test_what_cannot_be_combined_is_named(values, message):
    with pytest.raises(FieldError, match=message):
        Grid(**values)
