"""The sizes that a small model is inflated to."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

from ssd.errors import FieldError


@dataclass(frozen=True)
class Shape:
    """Sizes of a dense decoder. The head is always apart from the embedding, so that its idle columns can be random."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer, norms left out."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return self.hidden * (2 * queries + 2 * keys + 3 * self.intermediate)

    @property
    def parameters_read(self) -> int:
        """Weights that one step reads: all layers and the head. Of the embedding a step reads a few rows only."""
        return self.layers * self.layer_parameters + self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All weights, norms left out."""
        return self.parameters_read + self.vocab * self.hidden


SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        shape.name: shape
        for shape in (
            Shape("0.6b", 28, 1024, 3072, 16, 8, 128, 151936),  # Qwen3-0.6B
            Shape("1b", 16, 2048, 8192, 32, 8, 64, 128256),  # Llama-3.2-1B
            Shape("8b", 32, 4096, 14336, 32, 8, 128, 128256),  # Llama-3.1-8B
            Shape("32b", 64, 5120, 25600, 64, 8, 128, 151936),  # Qwen3-32B
            Shape("70b", 80, 8192, 28672, 64, 8, 128, 128256),  # Llama-3.1-70B
        )
    }
)
"""Real models' sizes. All become Llamas: Qwen3's per-head norms would change the function of a Llama inside."""

SIZES = tuple(field.name for field in fields(Shape) if field.name != "name")


def parse_shape(text: str) -> Shape:
    """A name of SHAPES, `name,size=number,…`, or all sizes without a name. FieldError("shape") says what is wrong."""
    first, *rest = text.split(",")
    base = SHAPES.get(first)
    if base is None and "=" not in first:
        raise FieldError("shape", f"no shape {first!r}; there are {', '.join(SHAPES)}, or SIZE=NUMBER with commas")
    given: dict[str, int] = {}
    for part in rest if base else [first, *rest]:
        name, _, value = part.partition("=")
        if name not in SIZES or not value.isdigit() or int(value) < 1:
            raise FieldError("shape", f"{part!r} is not SIZE=NUMBER with a size of {', '.join(SIZES)}")
        given[name] = int(value)
    if base is not None:
        return replace(base, name=text, **given)
    missing = [name for name in SIZES if name not in given]
    if missing:
        raise FieldError("shape", f"without a name all sizes are needed; missing: {', '.join(missing)}")
    return Shape(text, **given)
