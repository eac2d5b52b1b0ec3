"""Attention as the model sees it: one context object a step, the kernel behind a protocol."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch


@dataclass(frozen=True)
class BranchContext:
    """T tokens, each the newest of one branch: it sees a prefix of a trunk and then the branch's own suffix.

    trunk_row [T] row of the context's block_tables · prefix_len [T] trunk keys visible · suffix_slots [T, D] slots of
    the branch's tokens in order, padded with -1 · suffix_len [T] how many of them are visible, the current token
    included. All int64.
    """

    trunk_row: torch.Tensor
    prefix_len: torch.Tensor
    suffix_slots: torch.Tensor
    suffix_len: torch.Tensor


@dataclass
class AttentionContext:
    """Everything that attention needs to know about one step; built once, read by every layer.

    positions [T] · slots [T] where each token's KV is written (-1 writes nowhere) · query_starts [R+1] the rows' spans
    of tokens · context_lens [R] keys visible to a row's last token · block_tables [R, W] block ids, padded with 0. All
    int64. With `branches` the tokens are branches instead, and query_starts and context_lens are not read.
    query_lens and key_lens are the host's copy of the rows' sizes, so that nothing waits for the device to learn a
    shape.
    """

    positions: torch.Tensor
    slots: torch.Tensor
    query_starts: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    block_size: int
    query_lens: Sequence[int]
    key_lens: Sequence[int]
    backend: "AttentionBackend"
    keys: Sequence[torch.Tensor]
    values: Sequence[torch.Tensor]
    branches: BranchContext | None = None
    most_queries: int | None = None
    """No row has more query tokens than this; constant for a captured step. None: the largest of query_lens."""
    plan: Any = field(default=None, repr=False)
    """What the backend works out at a step's first layer (indices, masks) for the others; no one else reads it."""


class AttentionBackend(Protocol):
    """A way to compute attention over the paged cache."""

    deterministic: bool
    """Whether a token's result is the same bits whatever else is in the step."""

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache_k: torch.Tensor,
        cache_v: torch.Tensor,
        ctx: AttentionContext,
    ) -> torch.Tensor:
        """Writes k, v [T, Hkv, d] to the cache [slots, Hkv, d] and returns [T, Hq, d] for q [T, Hq, d].

        A token sees the keys at positions up to its own; scores are scaled by 1 / sqrt(d).
        """
        ...


@dataclass(frozen=True)
class Turning:
    """What makes q and k of a product's results: cos | sin of each token [T, d], and the norms' weights [d], if q and k
    are normalised per head."""

    cos_sin: torch.Tensor
    heads: int
    kv_heads: int
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    eps: float


@runtime_checkable
class WholeBackend(Protocol):
    """A backend that may turn, write to the cache and attend in one kernel."""

    def turn_and_attend(
        self, qkv: torch.Tensor, turning: Turning, cache_k: torch.Tensor, cache_v: torch.Tensor, ctx: AttentionContext
    ) -> torch.Tensor | None:
        """qkv [T, (Hq + 2 Hkv) d] → [T, Hq d]; None, and nothing done, for a step that it does not take so."""
        ...


class Attention:
    """One layer's view of the context."""

    def __init__(self, layer: int) -> None:
        self.layer = layer

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ctx: AttentionContext) -> torch.Tensor:
        return ctx.backend.attend(q, k, v, ctx.keys[self.layer], ctx.values[self.layer], ctx)
