"""What an inflated model is made of, as `inflate.json` in its directory says it."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.inflate.placement import Placement, place
from bench.inflate.shapes import SHAPES, SIZES, Shape, parse_shape
from ssd.errors import FieldError
from ssd.models.builtin import embedding_lender, resolve_model
from ssd.models.checkpoint import RECIPE
from ssd.models.config import ModelConfig
from ssd.models.errors import ModelError
from ssd.tokenizer import TOKENIZER_FILE

_TOKENIZER_FILES = (
    TOKENIZER_FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)


@dataclass(frozen=True)
class Recipe:
    """base: a built-in name or a directory, and with it the model that lends its embedding where the base is stored
    without one. max_position: longest context of the big model; None = the base's."""

    base: str
    shape: Shape
    embedding_from: str | None = None
    max_position: int | None = None

    @property
    def lender(self) -> str | None:
        return self.embedding_from or embedding_lender(self.base)

    def placement(self) -> Placement:
        """Reads the base's configuration. Raises ModelError or FieldError."""
        return place(ModelConfig.from_directory(resolve_model(self.base)), self.shape)


def read_recipe(directory: Path) -> Recipe:
    """The recipe in `directory`; ModelError for one that cannot be read."""
    path = directory / RECIPE
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        shape, base = raw["shape"], str(raw["base"])
        size = parse_shape(shape) if isinstance(shape, str) else _shape(shape)
        # Paths are relative to the recipe, built-in names are not paths.
        beside = directory / base
        found = str(beside) if beside.exists() else base
        return Recipe(found, size, raw.get("embedding_from"), raw.get("max_position"))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(f"{path} is no recipe of an inflated model: {error!r}") from None


def _shape(raw: Mapping[str, Any]) -> Shape:
    return Shape(str(raw.get("name", "custom")), **{name: int(raw[name]) for name in SIZES})


def write_recipe(directory: Path, recipe: Recipe, dtype: str) -> None:
    """A directory that is a model by its recipe alone: inflate.json, config.json and the tokenizer's files."""
    write_configuration(directory, recipe, dtype)
    raw = {key: value for key, value in asdict(recipe).items() if value is not None}
    if SHAPES.get(recipe.shape.name) == recipe.shape:
        raw["shape"] = recipe.shape.name
    if Path(recipe.base).exists():
        raw["base"] = str(Path(recipe.base).resolve())
    (directory / RECIPE).write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


def write_configuration(directory: Path, recipe: Recipe, dtype: str) -> None:
    """config.json, generation_config.json and the tokenizer's files into `directory`, which is made."""
    base = resolve_model(recipe.base)
    raw = inflated_config(json.loads((base / "config.json").read_text(encoding="utf-8")), recipe, dtype)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    tokenizer = base if (base / TOKENIZER_FILE).is_file() or recipe.lender is None else resolve_model(recipe.lender)
    for name in _TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, directory / name)
    for folder in (base, tokenizer):
        if (folder / "generation_config.json").is_file():
            shutil.copyfile(folder / "generation_config.json", directory / "generation_config.json")
            break


def inflated_config(raw: Mapping[str, Any], recipe: Recipe, dtype: str) -> dict[str, Any]:
    """The big model's config.json from the small one's."""
    shape, placement = recipe.shape, recipe.placement()
    changed = {
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": placement.norm_eps,
        "tie_word_embeddings": False,
        "dtype": dtype,
    }
    if recipe.max_position is not None:
        if recipe.max_position < 1:
            raise FieldError("max_position", f"is {recipe.max_position}, must be at least 1")
        changed["max_position_embeddings"] = recipe.max_position
    kept = {key: value for key, value in raw.items() if key != "torch_dtype"}
    return {**kept, **changed}
