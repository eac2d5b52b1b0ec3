"""A whole run on real processes: all modes, equal ids, files, baseline, timeline."""

import importlib.util
import json

import pytest

from bench.inflate.recipe import Recipe
from bench.inflate.shapes import parse_shape
from bench.inflate.writing import write_inflated
from ssd.models.builtin import INSTALL, PACKAGE
from tests.system.command import Command
from tests.toy import make_noisy_draft, make_toy

WIDE = "layers=5,hidden=96,intermediate=200,heads=12,kv_heads=4,head_dim=32,vocab=400"
TINY = ("--prompts", "2", "--max-tokens", "16", "--repeats", "2", "--warm-up", "4", "--threads", "1")


def run(*arguments):
    with Command("bench", "run", *arguments) as command:
        status = command.wait_end(400)
        return status, "\n".join(command.out), command.transcript()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_inflated_toy_pair_is_measured_in_all_modes(tmp_path):
    target = make_toy(tmp_path / "toy")
    draft = make_noisy_draft(target, tmp_path / "draft", 0.02)
    for name, base in (("target", target), ("draft", draft)):
        write_inflated(tmp_path / "big" / name, Recipe(str(base), parse_shape(WIDE)))
    models = ("--target-model", str(tmp_path / "big" / "target"), "--draft-model", str(tmp_path / "big" / "draft"))
    settings = ("--dtype", "float32", "--batch", "1,2", "--temperature", "0,0.8", "--k", "2,3", "--fan-out", "1,2")
    files = ("--out", str(tmp_path / "out"), "--trace", str(tmp_path / "trace.json"))
    status, output, said = run(
        *TINY, *models, *settings, *files, "--raw", "--baseline", "transformers", "--require-equal"
    )
    assert status == 0, said
    assert "ids: equal in all" in output and "transformers, batch 2, T=0.8" in output
    read = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(read["results"]) == 2 * 2 * (1 + 2 + 4 + 1)
    for one in read["results"]:
        assert [sample["tokens"] for sample in one["samples"]] == [32, 32]
        assert one["derived"]["verify_ms"] > 0
    assert read["setup"]["target"]["parameters"] > 400_000 and read["setup"]["sharing"] == "cpu"
    assert any(event["name"] == "request" for event in json.loads((tmp_path / "trace.json").read_text()))
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason=f"SmolLM2 is not installed: {INSTALL}")
def test_the_shipped_pair_gives_equal_ids_in_all_modes(tmp_path):
    settings = ("--temperature", "0,0.8", "--k", "2", "--fan-out", "2", "--require-equal")
    status, output, said = run(*TINY, *settings, "--out", str(tmp_path))
    assert status == 0, said
    assert "ids: equal in all" in output
    read = json.loads((tmp_path / "results.json").read_text())
    speculated = [one for one in read["results"] if one["case"]["mode"] in ("sd", "ssd")]
    assert len(speculated) == 4 and all(one["derived"]["acceptance"] > 0.2 for one in speculated)


def test_a_router_that_is_not_there_is_said():
    status, _, said = run(*TINY, "--router", "127.0.0.1:1")
    assert status == 1 and "the router at 127.0.0.1:1 does not say what it serves" in said
