"""The big model's tensors, made one at a time from the small model's."""

import zlib
from collections.abc import Callable, Iterator

import torch

from bench.inflate.placement import Placement
from ssd.errors import FieldError
from ssd.models.loader import EMBEDDING, HEAD

IDLE_STD = 0.02
"""Spread of the weights that reach nothing: about that of real ones."""
FORBIDDEN_LOGIT = 1e4
"""Ids beyond the small vocabulary get a logit below minus this for as long as the root mean square of the last hidden
state is under LARGEST_RMS."""
LARGEST_RMS = 1e3
FINAL_NORM = "model.norm.weight"

SmallWeights = Callable[[str], torch.Tensor]
"""A tensor of the small model by its name in a checkpoint."""


class InflatedWeights:
    """Tensors of the big model by checkpoint name, each on `device` in `dtype`.

    What is random is the same for the same name, kind of device and dtype. FieldError("dtype") for one in which the
    logits of a padded vocabulary would overflow.
    """

    def __init__(self, placement: Placement, small: SmallWeights, device: torch.device, dtype: torch.dtype) -> None:
        if placement.constant and dtype == torch.float16:
            raise FieldError("dtype", "float16 cannot rule out the ids of a padded vocabulary; use bfloat16 or float32")
        self.placement = placement
        self._small = small
        self._device = device
        self._dtype = dtype

    def names(self) -> Iterator[str]:
        """All tensors, in the order of the model."""
        yield EMBEDDING
        for layer in range(self.placement.shape.layers):
            yield from (f"model.layers.{layer}.{stem}.weight" for stem in _LAYER)
        yield FINAL_NORM
        yield HEAD

    def shape(self, name: str) -> list[int]:
        """The shape of a tensor, without making it."""
        big = self.placement.shape
        if name in (EMBEDDING, HEAD):
            return [big.vocab, big.hidden]
        if name.endswith("norm.weight"):
            return [big.hidden]
        queries, keys = big.heads * big.head_dim, big.kv_heads * big.head_dim
        sizes = {
            "q_proj": [queries, big.hidden],
            "k_proj": [keys, big.hidden],
            "v_proj": [keys, big.hidden],
            "o_proj": [big.hidden, queries],
            "gate_proj": [big.intermediate, big.hidden],
            "up_proj": [big.intermediate, big.hidden],
            "down_proj": [big.hidden, big.intermediate],
        }
        return sizes[name.split(".")[-2]]

    def __call__(self, name: str) -> torch.Tensor:
        """The tensor, made now."""
        if name == EMBEDDING:
            return self._embedding()
        if name == HEAD:
            return self._head()
        if name == FINAL_NORM:
            return self._final_norm()
        layer, kind = int(name.split(".")[2]), name.split(".")[-2]
        idle = layer >= self.placement.small.layers
        if kind.endswith("norm"):
            return self._norm(None if idle else name)
        if kind in ("o_proj", "down_proj"):
            return self._output(name, None if idle else kind)
        return self._random(name) if idle else self._input(name, kind)

    # One tensor each

    def _embedding(self) -> torch.Tensor:
        whole = self._zeros(EMBEDDING)
        small = self._of_small(EMBEDDING)
        whole[: small.shape[0], : small.shape[1]] = small
        if self.placement.constant:
            whole[:, small.shape[1]] = self.placement.constant
        return whole

    def _head(self) -> torch.Tensor:
        config = self.placement.small
        whole = self._random(HEAD)
        small = self._of_small(EMBEDDING if config.tied else HEAD)
        whole[: small.shape[0], : small.shape[1]] = small
        if self.placement.constant:
            # Only ids beyond the small vocabulary see the constant channel, with a weight that rules them out.
            whole[: small.shape[0], small.shape[1]] = 0.0
            whole[small.shape[0] :, small.shape[1]] = -1.0
        return whole

    def _norm(self, name: str | None) -> torch.Tensor:
        """A layer's norm; of a layer that adds nothing where there is no name. The constant channel stays inside."""
        place = self.placement
        whole = torch.full([place.shape.hidden], place.norm_scale, device=self._device, dtype=self._dtype)
        hidden = place.small.hidden_size
        if name is not None:
            whole[:hidden] = (self._small(name).double() * place.norm_scale).to(self._device, self._dtype)
        if place.constant:
            whole[hidden] = 0.0
        return whole

    def _final_norm(self) -> torch.Tensor:
        whole, place = self._norm(FINAL_NORM), self.placement
        if place.constant:
            # The norm makes constant * weight / (norm_scale * rms) of it.
            whole[place.small.hidden_size] = FORBIDDEN_LOGIT * LARGEST_RMS * place.norm_scale / place.constant
        return whole

    def _input(self, name: str, kind: str) -> torch.Tensor:
        place = self.placement
        whole, hidden = self._random(name), place.small.hidden_size
        small = self._small(name)
        if kind == "q_proj":
            # In float64, so that the scale costs one rounding at most.
            scaled = (small.double() * place.query_scale).to(self._device, self._dtype)
            whole[self._index(place.query_rows), :hidden] = scaled
            whole[self._index(place.idle_queries)] = 0.0
        elif kind in ("k_proj", "v_proj"):
            for rows in place.key_rows:
                whole[self._index(rows), :hidden] = small.to(self._device, self._dtype)
        else:
            whole[: small.shape[0], :hidden] = small.to(self._device, self._dtype)
        return whole

    def _output(self, name: str, kind: str | None) -> torch.Tensor:
        """Zero but for what the small model has: everything else must not reach the residual stream."""
        place, whole = self.placement, self._zeros(name)
        if kind is not None:
            small = self._of_small(name)
            columns = place.query_rows if kind == "o_proj" else torch.arange(small.shape[1])
            whole[: small.shape[0]].index_copy_(1, self._index(columns), small)
        return whole

    def _of_small(self, name: str) -> torch.Tensor:
        return self._small(name).to(self._device, self._dtype)

    def _index(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.to(self._device)

    def _zeros(self, name: str) -> torch.Tensor:
        return torch.zeros(self.shape(name), device=self._device, dtype=self._dtype)

    def _random(self, name: str) -> torch.Tensor:
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
        whole = torch.empty(self.shape(name), device=self._device, dtype=self._dtype)
        return whole.normal_(0.0, IDLE_STD, generator=generator)


_LAYER = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)


def zero_share(placement: Placement) -> float:
    """Share of the weights read by a step that are zero because the function demands it."""
    small, big = placement.small, placement.shape
    queries, dim = big.heads * big.head_dim, small.head_dim
    inner = big.hidden * (queries + big.intermediate)  # o_proj and down_proj of a layer
    used = small.hidden_size * (small.heads * dim + small.intermediate_size)
    idle_queries = len(placement.idle_queries) * big.hidden
    zeros = big.layers * inner - small.layers * used + small.layers * idle_queries
    return zeros / big.parameters_read
