"""When a target computes batch by batch alike without being asked."""

import pytest

from ssd.runtime.device import resolve_deterministic


@pytest.mark.parametrize(
    ("switch", "dtype", "expected"),
    [("auto", "bfloat16", True), ("auto", "float16", True), ("auto", "float32", False), ("auto", "float64", False)]
    + [("on", "float32", True), ("off", "bfloat16", False)],
)
def test_auto_means_sixteen_bits_on_the_cpu(switch, dtype, expected):
    assert resolve_deterministic(switch, dtype, "cpu") is expected
