"""Where the small model's heads and channels go inside the big one."""

import math
from dataclasses import dataclass

import torch

from bench.inflate.shapes import Shape
from ssd.errors import FieldError
from ssd.models.config import ModelConfig


@dataclass(frozen=True)
class Placement:
    """A small model inside a big one.

    query_rows     [heads * d] rows of the big q_proj (columns of o_proj) that the small one's rows become
    key_rows       one [kv_heads * d] tensor of rows of the big k_proj and v_proj for each copy of the key/value heads
    idle_queries   rows of the big q_proj that belong to an active head but to no channel of the small one: they must
                   be zero, or they would add to the head's scores
    query_scale    makes up for the other 1 / sqrt(d)
    norm_scale     makes up for the mean of squares being over more channels
    norm_eps       the big model's
    constant       value of the first extra channel, the same for every token: 0 = there is none
    """

    small: ModelConfig
    shape: Shape
    query_rows: torch.Tensor
    key_rows: tuple[torch.Tensor, ...]
    idle_queries: torch.Tensor
    query_scale: float
    norm_scale: float
    norm_eps: float
    constant: float

    @property
    def padded(self) -> int:
        """Ids beyond the small model's vocabulary, which must never be drawn."""
        return self.shape.vocab - self.small.vocab_size


def place(small: ModelConfig, shape: Shape) -> Placement:
    """The placement; FieldError("shape") names a size that cannot hold the small model."""
    _check(small, shape)
    dim, wide = small.head_dim, shape.head_dim
    group, wide_group = small.heads // small.kv_heads, shape.heads // shape.kv_heads
    # A big key head may serve fewer query heads than a small one: then the small one is there several times.
    copies = math.ceil(group / wide_group)
    channels = _channels(dim, wide)
    query_heads = []
    for kv_head in range(small.kv_heads):
        for member in range(group):
            first = (kv_head * copies + member // wide_group) * wide_group
            query_heads.append(first + member % wide_group)
    key_heads = [[kv_head * copies + copy for kv_head in range(small.kv_heads)] for copy in range(copies)]
    query_rows = _rows(query_heads, channels, wide)
    active = _rows(query_heads, torch.arange(wide), wide)
    constant, eps = _constant(small, shape)
    return Placement(
        small=small,
        shape=shape,
        query_rows=query_rows,
        key_rows=tuple(_rows(heads, channels, wide) for heads in key_heads),
        idle_queries=active[~torch.isin(active, query_rows)],
        query_scale=math.sqrt(wide / dim),
        norm_scale=math.sqrt(small.hidden_size / shape.hidden),
        norm_eps=eps,
        constant=constant,
    )


def _channels(dim: int, wide: int) -> torch.Tensor:
    """Channels of a wide head for those of a narrow one.

    Rotation pairs channel i with i + d/2 and turns them by theta^(-2i/d) a position. Pair i of the narrow head has the
    angle of pair i * (wide / dim) of the wide one, in floating point too.
    """
    half = torch.arange(dim // 2) * (wide // dim)
    return torch.cat([half, half + wide // 2])


def _rows(heads: list[int], channels: torch.Tensor, wide: int) -> torch.Tensor:
    return (torch.tensor(heads)[:, None] * wide + channels).flatten()


def _constant(small: ModelConfig, shape: Shape) -> tuple[float, float]:
    """The constant channel's value c, and the big model's epsilon.

    sum(x^2) / H' + eps' = (sum of the small x^2 + c^2) / H' + eps' has to be (H / H') (sum of the small x^2 / H + eps).
    So c^2 + H' eps' = H eps: a part of the small model's epsilon becomes the constant channel.
    """
    whole = small.hidden_size * small.norm_eps
    if shape.vocab == small.vocab_size:
        return 0.0, whole / shape.hidden
    # A power of two is exact in every dtype.
    constant = 2.0 ** math.floor(math.log2(math.sqrt(whole / 2)))
    return constant, (whole - constant**2) / shape.hidden


def _check(small: ModelConfig, shape: Shape) -> None:
    if small.family != "llama" or small.attention_bias or small.mlp_bias:
        raise FieldError("base", f"is {small.family} or has biases; only a Llama without biases can be inflated")
    sizes = (
        ("layers", small.layers, shape.layers),
        ("hidden", small.hidden_size + (shape.vocab > small.vocab_size), shape.hidden),
        ("intermediate", small.intermediate_size, shape.intermediate),
        ("vocab", small.vocab_size, shape.vocab),
    )
    for name, least, given in sizes:
        if given < least:
            raise FieldError("shape", f"{name} = {given} cannot hold the small model: at least {least} are needed")
    if shape.heads % shape.kv_heads:
        raise FieldError("shape", f"heads = {shape.heads} cannot share kv_heads = {shape.kv_heads} evenly")
    if shape.head_dim % small.head_dim:
        raise FieldError("shape", f"head_dim = {shape.head_dim} is no multiple of the small model's {small.head_dim}")
    copies = math.ceil((small.heads // small.kv_heads) / (shape.heads // shape.kv_heads))
    if copies * small.kv_heads > shape.kv_heads:
        raise FieldError(
            "shape",
            f"kv_heads = {shape.kv_heads} cannot hold {copies} copies of {small.kv_heads}, which groups of "
            f"{shape.heads // shape.kv_heads} query heads need",
        )
