"""`ssd bench`: verbs, refusals, and the small commands; a run of the whole is in tests/bench."""

import json
import sys

import pytest
from typer.testing import CliRunner

from ssd.cli.app import app
from ssd.cli.bench_run import listed
from ssd.cli.errors import CliError
from ssd.errors import FieldError
from ssd.models.checkpoint import RECIPE
from ssd.telemetry.trace import FileTracer
from tests.toy import make_toy

WIDE = "layers=5,hidden=96,intermediate=200,heads=12,kv_heads=4,head_dim=32,vocab=400"


def bench(*arguments, status=0):
    result = CliRunner().invoke(app, ["bench", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


def test_without_a_verb_it_runs_and_help_lists_the_verbs():
    with pytest.raises(FieldError, match="modes: no mode 'fast'"):
        bench("--modes", "fast")
    output = bench("--help")
    for verb in ("run", "datasets", "inflate", "kernels", "step", "acceptance", "trace"):
        assert f"\n  {verb} " in output
    assert "--fan-out" in bench("run", "--help")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch", "1,x"), "--batch: expected numbers"),
        (("--dataset", "mmlu"), "--dataset: no prompt set 'mmlu'"),
        (("--dataset", "gsm8k", "--data", "/nowhere"), r"gsm8k: no file /nowhere/gsm8k/test\.jsonl.*published at"),
        (("--baseline", "vllm"), "only transformers"),
        (("--mps", "--router", "127.0.0.1:1"), "--mps is for services that are started here"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(arguments, message):
    with pytest.raises(CliError, match=message):
        bench(*arguments)


def test_numbers_come_with_commas():
    assert listed("--k", "2,4", int) == (2, 4) and listed("--k", "", int) == ()


def test_datasets_says_what_is_there_and_where_the_rest_is_published(tmp_path):
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "test.jsonl").write_text("")
    output = bench("datasets", "--data", str(tmp_path))
    assert f"gsm8k: {tmp_path}/gsm8k/test.jsonl" in output and "alpaca: not in" in output
    assert output.count("https://") == 4


def test_inflate_writes_a_pair_and_checks_it(tmp_path):
    target, draft = make_toy(tmp_path / "t"), make_toy(tmp_path / "d", seed=2)
    models = ("--target-model", str(target), "--draft-model", str(draft))
    output = bench("inflate", str(tmp_path / "big"), *models, "--target", WIDE, "--draft", WIDE, "--check")
    assert output.count("equal to the small one") == 2 and "NOT EQUAL" not in output
    for name in ("target", "draft"):
        assert (tmp_path / "big" / name / "model.safetensors").is_file()
        assert (tmp_path / "big" / name / "tokenizer.json").is_file()


def test_inflate_writes_a_recipe_alone_and_only_what_is_wanted(tmp_path):
    target = make_toy(tmp_path / "t")
    output = bench(
        *("inflate", str(tmp_path / "big"), "--target-model", str(target), "--target", WIDE, "--draft", "none"),
        *("--recipe", "--max-position", "4096"),
    )
    assert "% of them zero" in output
    assert sorted(p.name for p in (tmp_path / "big").iterdir()) == ["target"]
    assert json.loads((tmp_path / "big" / "target" / RECIPE).read_text())["shape"]["layers"] == 5
    assert not list((tmp_path / "big" / "target").glob("*.safetensors"))


def test_inflate_names_a_shape_that_does_not_exist(tmp_path):
    with pytest.raises(FieldError, match="no shape '9b'"):
        bench("inflate", str(tmp_path), "--target", "9b")


def test_the_parts_of_a_trace_are_joined_and_summed_up(tmp_path):
    file = tmp_path / "t.json"
    with pytest.raises(CliError, match="has no parts"):
        bench("trace", "merge", str(file))
    tracer = FileTracer(file, "target")
    tracer.span("engine", "step", 1.0, 1.5)
    tracer.close()
    output = bench("trace", "merge", str(file), "--keep")
    assert "step 1 times, median 500.000 ms" in output and f"1 events of 1 processes in {file}" in output
    assert tracer.path.exists() and json.loads(file.read_text())
    bench("trace", "merge", str(file))
    assert not tracer.path.exists()


def test_other_programs_get_the_rest_of_the_command_line(monkeypatch):
    class Fake:
        @staticmethod
        def main():
            print(sys.argv)

    monkeypatch.setitem(sys.modules, "bench.kernels", Fake)
    assert "['ssd bench kernels', '--only', 'norm', '--help']" in bench("kernels", "--only", "norm", "--help")


def test_a_program_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "bench.step", None)
    with pytest.raises(CliError, match=r"no bench\.step"):
        bench("step")
