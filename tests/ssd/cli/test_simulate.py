"""`ssd simulate` prints tables, writes JSON and plots, and names what is wrong."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from ssd.cli.app import app
from ssd.cli.errors import CliError
from ssd.simulator.plot import PlotUnavailable, plot_throughput
from ssd.simulator.report import put_between_marks


def simulate(*arguments):
    result = CliRunner().invoke(app, ["simulate", *arguments])
    if isinstance(result.exception, CliError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_a_run_prints_a_line_for_each_number_of_rows_and_writes_the_same_as_json(tmp_path):
    path = tmp_path / "run.json"
    output = simulate("run", "--rows", "1,4", "--tokens", "400", "--json", str(path))
    lines = output.splitlines()
    assert len(lines) == 4 and "auto tok/s" in lines[0]
    assert lines[2].startswith("| 1 ") and lines[3].startswith("| 4 ")
    written = json.loads(path.read_text())
    assert written["rows"] == [1, 4] and set(written["outcomes"]) == {"ar", "sd", "ssd", "auto"}
    assert f"{written['outcomes']['ssd'][1]['tokens_per_s']:.1f}" in lines[3]


def test_a_run_from_recorded_ranks(tmp_path):
    path = tmp_path / "ranks.jsonl"
    path.write_text("[1, 1, 1, 1, 2]\n")
    output = simulate("run", "--trace", str(path), "--rows", "1", "--modes", "sd", "--k", "4", "--tokens", "400")
    assert "sd tok/s" in output and "auto" not in output


def test_a_run_is_the_same_each_time():
    arguments = ("run", "--rows", "2", "--tokens", "300", "--modes", "auto")
    assert simulate(*arguments) == simulate(*arguments)


def test_the_pairs_stand_beside_what_was_published_and_go_into_a_document(tmp_path):
    document = tmp_path / "text.md"
    document.write_text("above\n<!-- simulate pairs -->\nold\n<!-- end of simulate pairs -->\nbelow\n")
    output = simulate("pairs", "--tokens", "800", "--into", str(document))
    assert output.count("published") == 2 and "llama-70b-1b" in output and "deviation" in output
    text = document.read_text()
    assert output.strip() in text and "old" not in text
    assert text.startswith("above\n") and text.endswith("below\n")


def test_a_load_is_shown_stretch_by_stretch(tmp_path):
    path = tmp_path / "load.json"
    output = simulate("load", "--rows", "1,3,1", "--seconds", "0.5", "--json", str(path))
    assert len(output.splitlines()) == 5
    assert [stretch["rows"] for stretch in json.loads(path.read_text())] == [1, 3, 1]


def test_a_plot_is_a_png(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "curves.png"
    simulate("run", "--rows", "1,2", "--tokens", "200", "--modes", "ar,sd", "--plot", str(path))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_plot_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PlotUnavailable, match="plot"):
        plot_throughput(tmp_path / "curves.png", "title", [1], {"ar": [1.0]})


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("run", "--rows", "1,x"), "--rows"),
        (("run", "--rows", "0"), "--rows"),
        (("run", "--modes", "fast"), "--modes"),
        (("run", "--pair", "none"), "--pair"),
        (("run", "--trace", "/nowhere/ranks.jsonl"), "/nowhere/ranks.jsonl"),
        (("grid", "--rows", "3"), "--rows"),
    ],
)
def test_wrong_input_is_one_line_that_names_it(arguments, named):
    with pytest.raises(CliError, match=named) as caught:
        simulate(*arguments)
    assert caught.value.status == 2 and "\n" not in caught.value.message


@pytest.mark.parametrize(
    "arguments",
    ["run --acceptance 2", "run --k 0", "run --drafts 0", "run --tokens 0", "run --target-ms -1", "load --seconds 0"],
)
def test_a_number_out_of_range_is_refused_by_its_flag(arguments):
    result = CliRunner().invoke(app, ["simulate", *arguments.split()])
    assert result.exit_code == 2
    assert arguments.split()[1] in result.output


def test_a_document_without_marks_is_left_alone(tmp_path):
    document = tmp_path / "text.md"
    document.write_text("nothing here\n")
    with pytest.raises(ValueError, match="marks"):
        put_between_marks(document, "simulate pairs", "table")
    assert document.read_text() == "nothing here\n"
