"""What every rank of a model loads and prepares, so that all of them do the same in the same order."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ssd.config import EngineConfig
from ssd.errors import FieldError
from ssd.layers.linear import local_kv_heads
from ssd.layers.shard import Shard
from ssd.models.config import ModelConfig
from ssd.models.loader import LoadedModel, Progress, load_model
from ssd.parallel.place import device_of
from ssd.runtime.step_sizes import Demand


@dataclass(frozen=True)
class Plan:
    """`directory` holds the model and `embedding` lends what it lacks; both lie at the same path on every machine."""

    directory: Path
    engine: EngineConfig
    demand: Demand
    deterministic: bool = False
    embedding: Path | None = None

    def check(self) -> None:
        """FieldError where the model cannot be split over so many ranks."""
        ranks, model = self.engine.tp, ModelConfig.from_directory(self.directory)
        try:
            whole = Shard(0, ranks)
            whole.split(model.heads, "attention heads")
            whole.split(model.intermediate_size, "intermediate_size")
            local_kv_heads(model.kv_heads, ranks)
        except ValueError as error:
            raise FieldError("engine.tp", f"is {ranks}, but {self.directory.name}: {error}") from None

    def load(self, shard: Shard, local_rank: int = 0, progress: Progress | None = None) -> LoadedModel:
        """This rank's part of the weights, on its device."""
        return load_model(
            self.directory,
            dtype=self.engine.dtype,
            device=self.device(local_rank),
            shard=shard,
            embedding_from=self.embedding,
            deterministic=self.deterministic,
            compiled=self.engine.compile == "on",
            early_launch=self.engine.early_launch,
            progress=progress,
        )

    def device(self, local_rank: int) -> str:
        """Where the rank runs; a model in one process takes the device as it is named."""
        return device_of(self.engine.device, local_rank) if self.engine.tp > 1 else self.engine.device

    def to_json(self) -> str:
        """Itself for another process, which must have the same files."""
        return json.dumps(asdict(self) | {"contents": self._contents()}, default=str)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """What to_json has written. FieldError where this machine has other files than the one that wrote it."""
        values = json.loads(text)
        plan = cls(
            Path(values["directory"]),
            EngineConfig(**values["engine"]),
            Demand(**values["demand"]),
            values["deterministic"],
        )
        if values["embedding"] is not None:
            plan = replace(plan, embedding=Path(values["embedding"]))
        for name, contents in plan._contents().items():
            if contents != values["contents"][name]:
                raise FieldError("model", f"{name} is not the same here as for rank 0: copy it to every machine")
        return plan

    def _contents(self) -> dict[str, str]:
        """What tells the model's directories from others at the same path: ranks with other shapes would wait for each
        other, and with other weights compute nonsense. Sizes are compared, not weights, which takes no time."""
        directories = [self.directory] if self.embedding is None else [self.directory, self.embedding]
        return {str(directory): _contents_of(directory) for directory in directories}


def _contents_of(directory: Path) -> str:
    hashed = hashlib.sha256()
    for path in sorted((*directory.glob("config.json"), *directory.glob("*.safetensors"))):
        hashed.update(f"{path.name} {path.stat().st_size}\n".encode())
        if path.suffix == ".json":
            hashed.update(path.read_bytes())
    return hashed.hexdigest()
