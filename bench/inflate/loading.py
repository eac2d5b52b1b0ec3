"""Weights of inflated models straight into memory, for a directory with `inflate.json` instead of weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.inflate.recipe import Recipe, read_recipe
from bench.inflate.weights import InflatedWeights, SmallWeights
from ssd.layers.weights import WeightShapeError
from ssd.models.builtin import resolve_model
from ssd.models.checkpoint import Checkpoint, listed
from ssd.models.decoder import CausalLM
from ssd.models.errors import ModelError
from ssd.models.loader import Progress, checkpoint_targets


@dataclass(frozen=True)
class WholeTensor:
    """A tensor in memory as a layer's loading side reads it; see ssd.layers.weights.Source."""

    tensor: torch.Tensor

    def get_shape(self) -> list[int]:
        return list(self.tensor.shape)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.tensor[index]


def fill(model: CausalLM, directory: Path, progress: Progress | None = None) -> None:
    """Fills every parameter of the model that was built for `directory`/config.json, on its own device and in its own
    dtype. Raises ModelError or FieldError."""
    recipe = read_recipe(directory)
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
