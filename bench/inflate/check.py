"""Is the big model the small one? Both computed side by side by a plain forward pass of its own, layer by layer.

A layer's weights live only while it is computed, so that a model of any size can be checked in float32 in the memory of
one layer. The forward pass shares no code with the one that serves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from bench.inflate.loading import small_weights
from bench.inflate.recipe import Recipe
from bench.inflate.weights import InflatedWeights
from ssd.layers.rotary import inverse_frequencies
from ssd.models.config import ModelConfig
from ssd.models.loader import EMBEDDING, HEAD

TOLERANCE = 1e-4
"""Largest difference of two logits, as a share of the largest logit where that is above 1: float32 sums of other
lengths."""

Weights = Callable[[str], torch.Tensor]


@dataclass(frozen=True)
class Difference:
    """Between the logits of both models over all positions of the texts.

    logits     largest difference of two logits of the small vocabulary
    largest    largest logit of the small model, in size
    positions  compared, and `same` of them have the same likeliest id, over the big model's whole vocabulary
    """

    logits: float
    largest: float
    positions: int
    same: int

    @property
    def equal(self) -> bool:
        return self.same == self.positions and self.logits <= TOLERANCE * max(1.0, self.largest)


@dataclass(frozen=True)
class Sizes:
    """What the forward pass needs to know of a Llama."""

    config: ModelConfig
    layers: int
    head_dim: int
    heads: int
    kv_heads: int
    eps: float
    tied: bool


@torch.inference_mode()
def check(
    recipe: Recipe, texts: Sequence[Sequence[int]], device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Difference:
    """Compare over `texts`, ids of the small vocabulary. Raises ModelError or FieldError."""
    placement = recipe.placement()
    small, shape, place = placement.small, placement.shape, torch.device(device)
    read = small_weights(recipe)
    big = InflatedWeights(placement, read, place, dtype)
    before = Sizes(small, small.layers, small.head_dim, small.heads, small.kv_heads, small.norm_eps, small.tied)
    after = Sizes(small, shape.layers, shape.head_dim, shape.heads, shape.kv_heads, placement.norm_eps, False)
    expected = forward(lambda name: read(name).to(place, dtype), before, texts)
    found = forward(big, after, texts)
    differences, largest, positions, same = 0.0, 0.0, 0, 0
    for one, other in zip(expected, found, strict=True):
        differences = max(differences, float((one - other[:, : small.vocab_size]).abs().max()))
        largest = max(largest, float(one.abs().max()))
        positions += len(one)
        same += int((one.argmax(-1) == other.argmax(-1)).sum())
    return Difference(differences, largest, positions, same)


def forward(weights: Weights, sizes: Sizes, texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Logits [T, vocab] of every position of each text; every layer's weights are read once for all of them."""
    embedding = weights(EMBEDDING)
    states = [functional.embedding(torch.tensor(list(ids), device=embedding.device), embedding) for ids in texts]
    if not sizes.tied:
        del embedding
    for layer in range(sizes.layers):
        states = _layer(weights, sizes, f"model.layers.{layer}", states)
    norm = weights("model.norm.weight")
    head = embedding if sizes.tied else weights(HEAD)
    return [_rms(x, norm, sizes.eps) @ head.T for x in states]


def _layer(weights: Weights, sizes: Sizes, stem: str, states: list[torch.Tensor]) -> list[torch.Tensor]:
    norm = weights(f"{stem}.input_layernorm.weight")
    q, k, v, o = (weights(f"{stem}.self_attn.{name}_proj.weight") for name in "qkvo")
    after = []
    for x in states:
        y = _rms(x, norm, sizes.eps)
        queries, keys, values = (_heads(y @ w.T, sizes.head_dim) for w in (q, k, v))
        attended = functional.scaled_dot_product_attention(
            _turn(queries, sizes), _turn(keys, sizes), values, is_causal=True, enable_gqa=True
        )
        after.append(x + attended.transpose(0, 1).flatten(1) @ o.T)
    del q, k, v, o
    norm = weights(f"{stem}.post_attention_layernorm.weight")
    gate, up, down = (weights(f"{stem}.mlp.{name}_proj.weight") for name in ("gate", "up", "down"))
    result = []
    for x in after:
        y = _rms(x, norm, sizes.eps)
        result.append(x + (functional.silu(y @ gate.T) * (y @ up.T)) @ down.T)
    return result


def _heads(x: torch.Tensor, dim: int) -> torch.Tensor:
    """[T, heads * dim] → [heads, T, dim]."""
    return x.view(len(x), -1, dim).transpose(0, 1)


def _turn(x: torch.Tensor, sizes: Sizes) -> torch.Tensor:
    """Rotary positions 0, 1, … for [heads, T, dim]."""
    angles = torch.outer(torch.arange(x.shape[1]).float(), inverse_frequencies(sizes.config.rope, sizes.head_dim))
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
