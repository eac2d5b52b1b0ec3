"""Gaps between steps are told apart by whether the engine waited in them."""

from bench.timeline import summary
from ssd.telemetry.trace import FileTracer, parts_of


def test_gaps_with_and_without_a_wait_are_counted_apart(tmp_path):
    tracer = FileTracer(tmp_path / "t.json", "target")
    for begun, ended in ((0.0, 1.0), (1.25, 2.0), (4.0, 5.0), (5.25, 6.0)):
        tracer.span("engine", "step", begun, ended)
    tracer.span("engine", "wait", 2.5, 3.9)
    tracer.instant("engine", "published", 2.0)
    tracer.close()
    lines = list(summary(parts_of(tmp_path / "t.json")))
    assert any("step 4 times, median 875.000 ms" in line for line in lines)
    assert any("step: gaps without a wait for messages 2 times, median 250.000 ms" in line for line in lines)
    assert any("gaps with a wait for messages 1 times, median 2000.000 ms" in line for line in lines)
    assert all(line.startswith("target ") for line in lines)
