"""A directory of weights → a model ready to run. Which part of a tensor goes where is the layers' own knowledge."""

import contextlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ssd.layers.build import Build
from ssd.layers.ops import make_ops
from ssd.layers.rows import AllRows, Rows, RowTiles
from ssd.layers.shard import Shard
from ssd.layers.weights import Layer, WeightShapeError
from ssd.models.checkpoint import Checkpoint, has_recipe, listed
from ssd.models.config import ModelConfig
from ssd.models.decoder import CausalLM
from ssd.models.errors import ModelError
from ssd.models.registry import build_model
from ssd.models.staging import Staging
from ssd.runtime.device import launches_early, on_gpu, resolve_device, resolve_dtype

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
DETERMINISTIC_TILE = 16
"""Rows in every product of the deterministic mode: 16 cost little more than one where weights are what is read."""
WHOLE = Shard()
GIB = 1 << 30

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) after each tensor, and once with both equal at the end."""


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode on its device."""

    model: CausalLM
    config: ModelConfig
    dtype: torch.dtype
    device: torch.device
    shard: Shard

    @property
    def deterministic(self) -> bool:
        return self.model.deterministic


@dataclass(frozen=True)
class Target:
    """Where one checkpoint tensor goes: a parameter of a layer, or one part of it."""

    layer: Layer
    parameter: str
    part: str


def load_model(
    path: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    shard: Shard = WHOLE,
    embedding_from: str | Path | None = None,
    deterministic: bool = False,
    compiled: bool = False,
    ops: str = "auto",
    early_launch: str = "off",
    progress: Progress | None = None,
) -> LoadedModel:
    """Loads a Hugging Face directory of a supported family.

    embedding_from is another model directory that lends its embedding (and head, where untied) to a draft that is
    stored without them. deterministic makes a token's result independent of what else is in the step (see
    ssd.layers.rows). ops: see ssd.layers.ops.make_ops. compiled: torch.compile makes the layers' kernels from the torch
    ops. early_launch: see ssd.runtime.device.launches_early. ModelError says what is missing, left over, of the wrong
    shape or too large for the device.
    """
    directory = Path(path)
    config = ModelConfig.from_directory(directory)
    place = resolve_device(device)
    rows: Rows = RowTiles(DETERMINISTIC_TILE) if deterministic else AllRows()
    kind = resolve_dtype(dtype, place)
    early = launches_early(early_launch, place)
    build = Build(kind, place, shard, rows, make_ops("torch" if compiled else ops, place, kind, early=early))
    try:
        check_fits(config, build)
        model = build_model(config, build)
    except ValueError as error:
        raise ModelError(f"{directory}: {error}") from None
    if has_recipe(directory):
        # By name and only now: benchmarks are no part of what serves.
        importlib.import_module("bench.inflate.loading").fill(model, directory, progress)
    else:
        load_weights(model, config, directory, None if embedding_from is None else Path(embedding_from), progress)
    if compiled:
        model.compile_layers()
    return LoadedModel(model.eval(), config, build.dtype, place, shard)


def check_fits(config: ModelConfig, build: Build) -> None:
    """ModelError where a GPU has less free memory than the weights need."""
    if build.device.type != "cuda":
        return
    weightless = build_model(config, replace(build, device=torch.device("meta")))
    needed = sum(parameter.nbytes for parameter in weightless.parameters())
    free, total = torch.cuda.mem_get_info(build.device)
    if needed > free:
        raise ModelError(
            f"the weights need {needed / GIB:.1f} GiB, and {free / GIB:.1f} of {total / GIB:.1f} GiB are free on "
            f"{build.device}: choose a smaller model or dtype, or free the device"
        )


def load_weights(
    model: CausalLM, config: ModelConfig, directory: Path, embedding_from: Path | None, progress: Progress | None = None
) -> None:
    """Fills every parameter; ModelError where tensors are missing or left over."""
    targets = checkpoint_targets(model)
    own = Checkpoint(directory)
    wanted = {own: own.names & targets.keys()}
    missing = targets.keys() - own.names
    if embedding_from is not None:
        lent = missing & {EMBEDDING, HEAD}
        lender = Checkpoint(embedding_from)
        wanted[lender] = lent & lender.names
        missing -= wanted[lender]
    if EMBEDDING in missing and embedding_from is None:
        raise ModelError(f"{directory} is stored without {EMBEDDING}: name the model that lends it (embedding_from)")
    if missing:
        lender_too = "" if embedding_from is None else f", and {embedding_from} does not lend them"
        raise ModelError(f"{directory} lacks tensors: {listed(missing)}{lender_too}")
    # A tied model may still be stored with a copy of the embedding as its head; old files also carry the rotary table.
    left_over = {name for name in own.names - targets.keys() if not name.endswith("rotary_emb.inv_freq")}
    left_over -= {HEAD} if config.tied else set()
    if left_over:
        raise ModelError(f"{directory} has tensors that a {config.family} model has no place for: {listed(left_over)}")
    total = sum(checkpoint.bytes_of(names) for checkpoint, names in wanted.items())
    done = 0
    device = next(model.parameters()).device
    with contextlib.ExitStack() as stack:
        stack.enter_context(on_gpu(device))
        staging = None
        if stages(model):
            staging = stack.enter_context(contextlib.closing(Staging(device)))
        for checkpoint, names in wanted.items():
            for name, source in checkpoint.read(names, staging):
                target = targets[name]
                try:
                    target.layer.load(target.parameter, source, target.part)
                except WeightShapeError as error:
                    raise ModelError(f"{checkpoint.directory}: {name} {error}") from None
                if progress is not None:
                    parameter = getattr(target.layer, target.parameter)
                    done = min(total, done + parameter.element_size() * torch.Size(source.get_shape()).numel())
                    progress(done, total)
    if progress is not None:
        progress(total, total)


def stages(model: CausalLM) -> bool:
    """Whether tensors cross to the device whole, through pinned memory: on a GPU that holds all of the model."""
    return next(model.parameters()).is_cuda and model.model.embed_tokens.shard.size == 1


def checkpoint_targets(model: CausalLM) -> dict[str, Target]:
    """Every tensor that a checkpoint of this model must have, by its name there."""
    targets = {}
    for path, layer in model.named_modules():
        if isinstance(layer, Layer):
            parent = path.rpartition(".")[0]
            for parameter, _ in layer.named_parameters(recurse=False):
                for part in layer.parts or ("",):
                    stem = f"{parent}.{part}" if part else path
                    targets[f"{stem}.{parameter}"] = Target(layer, parameter, part)
    return targets
