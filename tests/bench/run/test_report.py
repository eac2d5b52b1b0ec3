"""The table, the sentences below it, the JSON and the plots."""

import json
import math

import pytest

from bench.run import plots
from bench.run.cases import Case
from bench.run.counters import Counters
from bench.run.identity import Difference, Identity
from bench.run.report import Baseline, Report, as_json, as_markdown, best, summary, table, write
from ssd.simulator.plot import PlotUnavailable
from tests.bench.run.answers import result

COUNTERS = Counters(1.0, 50, 0.25, 100, {}, 2, 1)


def results():
    return [
        result("ar", 20.0),
        result("sd", 40.0, k=2),
        result("sd", 44.0, k=4),
        result("ssd", 66.0, k=4, fan_out=3, hits=30, misses=10, counters=COUNTERS),
        result("auto", 65.0, counters=Counters(modes={"ssd": 9.0, "ar": 1.0})),
    ]


def test_a_line_for_each_case_with_its_speed_beside_plain_decoding():
    lines = table(results()).splitlines()
    assert len(lines) == 7 and len({len(line) for line in lines}) == 1
    cells = [cell.strip() for cell in lines[5].split("|")[1:-1]]
    assert cells == [
        *("1", "0", "SSD K=4 F=3", "66.0", "66.0-66.0", "3.30", "66.0", "0.500", "0.750", "2.50"),
        *("0.62", "20.00", "2.50", "0.25", "0.100", "3"),
    ]


def test_the_best_of_each_mode_is_named_with_the_ratios():
    (line,) = summary(results())
    assert "AR 20.0, SD K=4 44.0, SSD K=4 F=3 66.0, AUTO 65.0 tok/s" in line
    assert "SD/AR 2.20, SSD/SD 1.50, SSD/AR 3.30, auto/best fixed 0.98" in line
    assert line.endswith("auto ran ar 10 %, ssd 90 %")
    assert best(results(), 2, 0.0, "ar") is None


def test_the_page_says_whether_ids_were_equal_and_what_was_skipped():
    identity = Identity(compared=4, equal=4)
    page = as_markdown(
        Report({"cpu": "x"}, {"draft": None}, results(), identity, Baseline(skipped="no weights"), ["n"])
    )
    assert "- ids: equal in all 4 comparisons" in page
    assert "- transformers: skipped, no weights" in page and "- n" in page and "- draft" not in page
    different = Identity(4, 3, [Difference("AR (batch 1)", Case(1, 0.0, "sd", 2), 0, 7, 5, 6, 0.01)])
    page = as_markdown(Report({}, {}, results(), different))
    assert "ids: DIFFERENT in 1 of 4" in page and "token 7 is 6, 5 in AR (batch 1), 0.01 nats" in page


def test_transformers_stands_beside_our_best():
    rows = ({"batch": 1, "temperature": 0.0, "tok_s": 18.0, "samples": []},)
    page = as_markdown(Report({}, {}, results(), Identity(), Baseline(rows=rows)))
    assert "transformers, batch 1, T=0: 18.0 tok/s; ours at best 66.0 (SSD K=4 F=3)" in page


def test_json_has_every_sample_and_what_follows_from_them(tmp_path):
    far = Difference("AR", Case(1, 0.0, "sd", 2), 0, 7, 5, 6, math.inf)
    report = Report({"cpu": "x"}, {}, results(), Identity(2, 1, [far]))
    write(report, tmp_path)
    read = json.loads((tmp_path / "results.json").read_text())
    assert read == json.loads(json.dumps(as_json(report)))
    one = read["results"][3]
    assert one["derived"]["hit_rate"] == 0.75 and one["derived"]["t_p"] == pytest.approx(0.625)
    assert one["samples"][0]["tokens"] == 100 and one["samples"][0]["counters"]["preemptions"] == 2
    assert read["identity"]["differences"][0]["gap"] == "inf"
    assert (tmp_path / "results.md").read_text() == as_markdown(report)


def several():
    found = []
    for batch in (1, 4):
        for temperature in (0.0, 0.7):
            found += [result(mode, 20.0 * batch, batch=batch, temperature=temperature) for mode in ("ar", "auto")]
            found += [
                result("ssd", 30.0, batch=batch, temperature=temperature, k=2, fan_out=fan_out, hits=fan_out, misses=5)
                for fan_out in (1, 3)
            ]
    return found


def test_plots_are_drawn_where_there_is_something_to_compare(tmp_path):
    pytest.importorskip("matplotlib")
    assert [path.name for path in plots.plot(several(), tmp_path)] == ["throughput.png", "hit-rate.png"]
    assert all((tmp_path / name).read_bytes()[:4] == b"\x89PNG" for name in ("throughput.png", "hit-rate.png"))
    assert not list(plots.plot(results(), tmp_path))


def test_without_matplotlib_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(PlotUnavailable, match="matplotlib"):
        list(plots.plot(several(), tmp_path))
