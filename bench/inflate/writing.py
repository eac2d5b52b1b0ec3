"""Inflated models as ordinary Hugging Face directories."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import torch

from bench.inflate.loading import small_weights
from bench.inflate.recipe import Recipe, write_configuration
from bench.inflate.weights import InflatedWeights
from ssd.models.checkpoint import write_checkpoint
from ssd.models.errors import ModelError
from ssd.models.loader import Progress

SPARE_BYTES = 1 << 30


def write_inflated(
    directory: Path,
    recipe: Recipe,
    dtype: torch.dtype = torch.bfloat16,
    *,
    shard_bytes: int = 2 << 30,
    progress: Progress | None = None,
) -> None:
    """config.json, the tokenizer and safetensors files of about `shard_bytes` each with an index, tensor by tensor.

    ModelError where the disk has no room, before anything is written; FieldError for what cannot be inflated.
    """
    weights = InflatedWeights(recipe.placement(), small_weights(recipe), torch.device("cpu"), dtype)
    total = sum(torch.Size(weights.shape(name)).numel() for name in weights.names()) * dtype.itemsize
    directory.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(directory).free
    if total + SPARE_BYTES > free:
        raise ModelError(
            f"{directory} has room for {free / 1e9:.0f} GB, the model takes {total / 1e9:.0f} GB; "
            "with --recipe nothing but its recipe is written"
        )
    write_configuration(directory, recipe, str(dtype).removeprefix("torch."))
    done = 0

    def made() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal done
        for name in weights.names():
            tensor = weights(name)
            yield name, tensor
            done += tensor.nbytes
            if progress is not None:
                progress(done, total)

    write_checkpoint(directory, made(), most_bytes=shard_bytes)
