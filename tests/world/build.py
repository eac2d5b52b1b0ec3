"""Engines over toy models, small enough to be built by the hundred."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from draft_service.engine import DraftEngine
from protos.ssd.v1 import types_pb2
from ssd.config import DraftConfig, TargetConfig
from ssd.models.loader import LoadedModel, load_model
from ssd.runtime.assembly import make_runner
from ssd.runtime.blocks import BlockPool
from ssd.tensor_plane.planes import LawReceiver, LawSender
from target_service.engine import TargetEngine
from tests import toy

UNRELATED = -1.0
"""A draft noise that stands for weights of another seed: it agrees with the target by chance only."""


@dataclass(frozen=True)
class Models:
    """Toy models in one folder, loaded once each, in float64: no rounding ties."""

    folder: Path
    _loaded: dict[tuple[str, float], LoadedModel] = field(default_factory=dict)

    def target(self, family: str) -> LoadedModel:
        return self._get(family, 0.0)

    def draft(self, family: str, noise: float) -> LoadedModel:
        return self._get(family, noise)

    def _get(self, family: str, noise: float) -> LoadedModel:
        if (family, noise) not in self._loaded:
            path = self.folder / f"{family}-{noise}"
            if noise == UNRELATED:
                toy.make_toy(path, family, seed=99, dtype=torch.float64)
            elif noise == 0.0:
                toy.make_toy(path, family, seed=0, dtype=torch.float64)
            else:
                self._get(family, 0.0)
                toy.make_noisy_draft(self.folder / f"{family}-0.0", path, noise)
            self._loaded[family, noise] = load_model(path, dtype="float64")
        return self._loaded[family, noise]


@cache
def info(vocab_size: int = toy.VOCAB) -> types_pb2.ModelInfo:
    return types_pb2.ModelInfo(name="toy", vocab_size=vocab_size, context_length=1024)


def target_engine(
    loaded: LoadedModel, config: TargetConfig, planes: LawReceiver | None = None
) -> tuple[TargetEngine, BlockPool]:
    runner, pool = make_runner(loaded, config.engine)
    return TargetEngine(runner, pool, loaded.config, config, info(), planes=planes), pool


def draft_engine(
    loaded: LoadedModel, config: DraftConfig, planes: LawSender | None = None
) -> tuple[DraftEngine, BlockPool]:
    runner, pool = make_runner(loaded, config.engine)
    return DraftEngine(runner, pool, loaded.config, config, info(), planes=planes), pool
