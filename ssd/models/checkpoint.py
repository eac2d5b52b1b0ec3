"""Tensors of a safetensors directory, in one file or sharded through an index."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ssd.layers.weights import Source
from ssd.models.errors import ModelError
from ssd.models.staging import Staging

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
RECIPE = "inflate.json"
"""Stands in a directory instead of weights: they are made on the device when the model is loaded (bench.inflate)."""


def has_recipe(directory: Path) -> bool:
    """Whether a model directory holds a recipe instead of weights."""
    return (directory / RECIPE).is_file()


class Checkpoint:
    """Names of all tensors, and their slices file by file so that each file is open once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = _files(directory)

    @property
    def names(self) -> set[str]:
        return {name for names in self.files.values() for name in names}

    def bytes_of(self, wanted: set[str]) -> int:
        """Size of the files that hold any of the wanted tensors."""
        return sum(path.stat().st_size for path, names in self.files.items() if wanted & names)

    def read(self, wanted: set[str], staging: Staging | None = None) -> Iterator[tuple[str, Source]]:
        """Wanted tensors as slices, which read only what is indexed; with `staging` whole and on its device already. A
        slice is good until the next one is asked for."""
        for path, names in self.files.items():
            chosen = sorted(wanted & names)
            if chosen and staging is not None:
                yield from staging.read(path, wanted & names)
            elif chosen:
                with _open(path) as tensors:
                    for name in chosen:
                        yield name, tensors.get_slice(name)


def _files(directory: Path) -> dict[Path, set[str]]:
    if not (directory / INDEX).is_file():
        single = directory / SINGLE
        if not single.is_file():
            raise ModelError(f"{directory} has neither {SINGLE} nor {INDEX}")
        return {single: _names(single)}
    try:
        weight_map = json.loads((directory / INDEX).read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError) as error:
        raise ModelError(f"{directory / INDEX} is not a safetensors index: {error!r}") from None
    files: dict[Path, set[str]] = {}
    for name, file in weight_map.items():
        files.setdefault(directory / file, set()).add(name)
    for path, names in files.items():
        absent = names - _names(path)
        if absent:
            raise ModelError(f"{path} lacks tensors that the index promises: {listed(absent)}")
    return files


def _names(path: Path) -> set[str]:
    with _open(path) as tensors:
        return set(tensors.keys())


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise ModelError(f"{path} is missing, though {INDEX} names it") from None
    except SafetensorError as error:
        raise ModelError(f"{path} is not a readable safetensors file: {error}") from None


def listed(names: set[str], most: int = 8) -> str:
    """Names for an error message: sorted, the first `most` of them."""
    shown = sorted(names)[:most]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")


def write_checkpoint(
    directory: Path, tensors: Iterable[tuple[str, torch.Tensor]], *, most_bytes: int = 2 << 30
) -> None:
    """Writes tensors as they come into safetensors files of about `most_bytes`, so that a model need not fit into
    memory at once; an index only where there are several files."""
    waiting: dict[str, torch.Tensor] = {}
    weight_map: dict[str, str] = {}
    size = number = 0

    def flush() -> None:
        nonlocal size, number
        number += 1
        file = f"model-{number:05d}.safetensors"
        save_file(waiting, directory / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(waiting, file))
        waiting.clear()
        size = 0

    for name, tensor in tensors:
        if waiting and size + tensor.nbytes > most_bytes:
            flush()
        waiting[name] = tensor
        size += tensor.nbytes
    flush()
    if number == 1:
        (directory / "model-00001.safetensors").rename(directory / SINGLE)
    else:
        index = {"metadata": {}, "weight_map": weight_map}
        (directory / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
