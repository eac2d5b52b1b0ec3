"""How a process describes what it serves."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from protos.ssd.v1 import types_pb2
from ssd.config import EngineConfig
from ssd.layers.build import Build
from ssd.models.loader import LoadedModel
from ssd.models.registry import build_model
from ssd.tokenizer import tokenizer_digest


def model_info(
    loaded: LoadedModel, source: str, directory: Path, engine: EngineConfig, tokenizer: Path, eos_ids: Sequence[int]
) -> types_pb2.ModelInfo:
    """`source` is the model as it was named at start, `directory` where it lies; `tokenizer` is a directory too."""
    limit = loaded.config.max_position
    settings = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return types_pb2.ModelInfo(
        name=Path(source).name,
        source=source,
        architecture=(settings.get("architectures") or [""])[0],
        vocab_size=loaded.config.vocab_size,
        context_length=min(engine.max_context or limit, limit),
        dtype=str(loaded.dtype).removeprefix("torch."),
        parameters=_parameters(loaded),
        tokenizer_digest=tokenizer_digest(tokenizer),
        tokenizer_source=str(tokenizer),
        eos_ids=eos_ids,
        deterministic=loaded.deterministic,
        tensor_parallel=loaded.shard.size,
    )


def _parameters(loaded: LoadedModel) -> int:
    """Of the whole model, wherever its parts are."""
    model = loaded.model
    if loaded.shard.size > 1:
        model = build_model(loaded.config, Build(device=torch.device("meta")))
    return sum(parameter.numel() for parameter in model.parameters())
