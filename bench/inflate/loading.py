"""Inflated models straight into memory: a directory with `inflate.json` instead of weights, or no directory at all."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.inflate.recipe import RECIPE, Recipe, inflated_config, read_recipe
from bench.inflate.shapes import Shape
from bench.inflate.weights import InflatedWeights, SmallWeights
from ssd.layers.build import Build
from ssd.layers.rows import AllRows, Rows, RowTiles
from ssd.layers.shard import Shard
from ssd.layers.weights import WeightShapeError
from ssd.models.builtin import resolve_model
from ssd.models.checkpoint import Checkpoint, listed
from ssd.models.config import ModelConfig
from ssd.models.decoder import CausalLM
from ssd.models.errors import ModelError
from ssd.models.loader import DETERMINISTIC_TILE, WHOLE, LoadedModel, Progress, checkpoint_targets
from ssd.models.registry import build_model
from ssd.runtime.device import resolve_device, resolve_dtype


@dataclass(frozen=True)
class WholeTensor:
    """A tensor in memory as a layer's loading side reads it; see ssd.layers.weights.Source."""

    tensor: torch.Tensor

    def get_shape(self) -> list[int]:
        return list(self.tensor.shape)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.tensor[index]


def is_inflated(directory: Path) -> bool:
    """Whether a model directory holds a recipe instead of weights."""
    return (directory / RECIPE).is_file()


def load_inflated(
    directory: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    shard: Shard = WHOLE,
    deterministic: bool = False,
    progress: Progress | None = None,
) -> LoadedModel:
    """The model that `directory`/inflate.json describes, made on the device. Raises ModelError or FieldError."""
    config = ModelConfig.from_directory(directory)
    loaded = _unfilled(config, dtype, device, shard, deterministic)
    fill(loaded.model, Path(directory), progress)
    return loaded


def build(
    small: str | Path,
    shape: Shape,
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = "auto",
    embedding_from: str | None = None,
) -> LoadedModel:
    """The model `small` (a built-in name or a directory) inflated to `shape`, in memory only."""
    recipe = Recipe(str(small), shape, embedding_from)
    raw = json.loads((resolve_model(recipe.base) / "config.json").read_text(encoding="utf-8"))
    config = ModelConfig.from_dict(inflated_config(raw, recipe, "float32"))
    loaded = _unfilled(config, dtype, device, WHOLE, False)
    _fill(loaded.model, recipe, None)
    return loaded


def fill(model: CausalLM, directory: Path, progress: Progress | None = None) -> None:
    """Fills every parameter of the model that was built for `directory`/config.json, on its own device and in its own
    dtype. Raises ModelError or FieldError."""
    _fill(model, read_recipe(directory), progress)


def _fill(model: CausalLM, recipe: Recipe, progress: Progress | None) -> None:
    first = next(model.parameters())
    weights = InflatedWeights(recipe.placement(), small_weights(recipe), first.device, first.dtype)
    targets = checkpoint_targets(model)
    names = list(weights.names())
    if strange := targets.keys() ^ set(names):
        raise ModelError(f"config.json does not fit the recipe: {listed(set(strange))}")
    sizes = {name: torch.Size(weights.shape(name)).numel() * first.element_size() for name in names}
    done, total = 0, sum(sizes.values())
    for name in names:
        target = targets[name]
        try:
            target.layer.load(target.parameter, WholeTensor(weights(name)), target.part)
        except WeightShapeError as error:
            raise ModelError(f"config.json does not fit the recipe: {name} {error}") from None
        done += sizes[name]
        if progress is not None:
            progress(done, total)


def small_weights(recipe: Recipe) -> SmallWeights:
    """Reads the small model's tensors, its lender's included. Raises ModelError."""
    own = Checkpoint(resolve_model(recipe.base))
    lent = Checkpoint(resolve_model(recipe.lender)) if recipe.lender is not None else None

    def read(name: str) -> torch.Tensor:
        holder = own if name in own.names or lent is None else lent
        for _, source in holder.read({name}):
            return source[:]
        raise ModelError(f"{holder.directory} lacks the tensor {name}")

    return read


def _unfilled(
    config: ModelConfig, dtype: str | torch.dtype, device: str | torch.device, shard: Shard, deterministic: bool
) -> LoadedModel:
    place = resolve_device(device)
    rows: Rows = RowTiles(DETERMINISTIC_TILE) if deterministic else AllRows()
    made = Build(dtype=resolve_dtype(dtype, place), device=place, shard=shard, rows=rows)
    try:
        model = build_model(config, made)
    except ValueError as error:
        raise ModelError(str(error)) from None
    return LoadedModel(model.eval(), config, made.dtype, place, shard)
