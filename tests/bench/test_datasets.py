"""Prompt sets are read as they are published, and what is missing is named."""

import gzip
import json

import pytest

from bench.datasets import DATASETS, OWN_FILE, DatasetError, Prompt, data_folder, load

PUBLISHED = {
    "humaneval": (
        "HumanEval.jsonl",
        '{"task_id": "X/0", "prompt": "def f():\\n", "entry_point": "f", "canonical_solution": "", "test": ""}\n'
        '{"task_id": "X/1", "prompt": "def g():\\n", "entry_point": "g", "canonical_solution": "", "test": ""}\n',
        ["def f():\n", "def g():\n"],
    ),
    "gsm8k": ("test.jsonl", '{"question": "How many?", "answer": "#### 3"}\n', ["How many?"]),
    "alpaca": (
        "alpaca_data.json",
        '[\n {"instruction": "Add.", "input": "1 and 2", "output": "3"},\n'
        ' {"instruction": "Sing.", "input": "", "output": "la"}]',
        ["Add.\n\n1 and 2", "Sing."],
    ),
    "ultrafeedback": (
        "ultrafeedback.jsonl",
        '{"source": "s", "instruction": "Explain.", "models": [], "completions": []}\n{"prompt": "Or so."}\n',
        ["Explain.", "Or so."],
    ),
}


def publish(folder, name):
    file, text, _ = PUBLISHED[name]
    (folder / name).mkdir(parents=True)
    (folder / name / file).write_text(text)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_set_is_read_as_it_is_published(tmp_path, name):
    publish(tmp_path, name)
    assert load([name], tmp_path) == [Prompt(name, text) for text in PUBLISHED[name][2]]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_missing_set_says_which_file_and_where_to_get_it(tmp_path, name):
    with pytest.raises(DatasetError, match=rf"{name}: no file .*{name}/.*published at https://"):
        load([name], tmp_path)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_missing_field_is_named_with_its_line(tmp_path, name):
    path = tmp_path / "file.jsonl"
    path.write_text(json.dumps({"text": "x"}) + "\n")
    with pytest.raises(DatasetError, match=r"file\.jsonl, line 1: no text field \w+.*there are: text"):
        load([f"{name}={path}"], tmp_path)


def test_gzipped_files_are_read(tmp_path):
    (tmp_path / "humaneval").mkdir()
    with gzip.open(tmp_path / "humaneval" / "HumanEval.jsonl.gz", "wt") as file:
        file.write(PUBLISHED["humaneval"][1])
    assert len(load(["humaneval"], tmp_path)) == 2


def test_sets_take_turns_and_only_as_many_as_asked_for_are_taken(tmp_path):
    for name in ("humaneval", "gsm8k", "alpaca"):
        publish(tmp_path, name)
    sources = [prompt.source for prompt in load(["humaneval", "gsm8k", "alpaca"], tmp_path, 4)]
    assert sources == ["humaneval", "gsm8k", "alpaca", "humaneval"]


def test_the_projects_own_prompts_need_no_files(tmp_path):
    prompts = load(["mixed"], tmp_path)
    assert len(prompts) == len(OWN_FILE.read_text().splitlines())
    assert {"code", "math"} <= {prompt.source for prompt in prompts}


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"PAR1\x00\xff", "cannot be read|neither JSON"), (b"hello\n", "neither JSON"), (b"3\n", "line 1: is no JSON")],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        load([f"gsm8k={path}"], tmp_path)


def test_unknown_sets_absent_files_and_empty_files_are_refused(tmp_path):
    with pytest.raises(DatasetError, match="no prompt set 'mmlu'; there are mixed, humaneval"):
        load(["mmlu"], tmp_path)
    with pytest.raises(DatasetError, match="there is no file"):
        load([f"gsm8k={tmp_path / 'absent'}"], tmp_path)
    (tmp_path / "empty").write_text("")
    with pytest.raises(DatasetError, match="no prompts in gsm8k"):
        load([f"gsm8k={tmp_path / 'empty'}"], tmp_path)


def test_the_folder_is_the_given_one_or_the_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("SSD_CACHE", str(tmp_path))
    assert data_folder(None) == tmp_path / "datasets"
    assert data_folder(tmp_path) == tmp_path


def test_every_set_is_described():
    assert all(one.fields and one.origin.startswith("https://") and one.files for one in DATASETS)
