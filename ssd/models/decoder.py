"""The blocks that every supported family is made of: pre-norm attention and gated MLP around a residual stream.

A layer is two row-wise functions with attention between them; `Build.rows` decides how many rows each call of these
sees, and `Build.ops` what computes them. What a layer gives and what flows past it travel apart (`x` and `residual`),
so that each norm adds them up in the same kernel.
"""

import functools
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from ssd.layers.attention import Attention, AttentionContext, Turning, WholeBackend
from ssd.layers.build import Build
from ssd.layers.embedding import VocabEmbedding
from ssd.layers.fused import FusedOps, SpanningOps, Spans
from ssd.layers.linear import ColumnLinear, QKVLinear, RowLinear
from ssd.layers.norm import RMSNorm
from ssd.layers.rotary import RotaryTable
from ssd.models.config import ModelConfig
from ssd.models.fused import fused_layers, span_weights, spanned_layers


@runtime_checkable
class WritingOps(Protocol):
    """Ops that turn and write to the cache in one kernel."""

    def turn_and_write(
        self,
        qkv: torch.Tensor,
        cos_sin: torch.Tensor,
        heads: int,
        kv_heads: int,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
        cache_k: torch.Tensor,
        cache_v: torch.Tensor,
        slots: torch.Tensor,
    ) -> torch.Tensor:
        """`turn`, with k and v [T, Hkv, d] written to slots [T] of the cache; -1 writes nowhere."""
        ...


@runtime_checkable
class ReadingBackend(Protocol):
    """An attention backend that can be told that k and v are written already."""

    def read(
        self, q: torch.Tensor, cache_k: torch.Tensor, cache_v: torch.Tensor, ctx: AttentionContext
    ) -> torch.Tensor:
        """[T, Hq, d] for q [T, Hq, d]."""
        ...


class SelfAttention(nn.Module):
    """Grouped-query attention with rotary positions. `head_norm`: q and k are normalised per head (Qwen3)."""

    def __init__(
        self, config: ModelConfig, layer: int, build: Build, *, qkv_bias: bool, out_bias: bool, head_norm: bool = False
    ) -> None:
        super().__init__()
        dim = config.head_dim
        self.ops = build.ops
        self.writer = build.ops if isinstance(build.ops, WritingOps) else None
        self.eps = config.norm_eps
        self.qkv_proj = QKVLinear(config.hidden_size, config.heads, config.kv_heads, dim, build, bias=qkv_bias)
        self.o_proj = RowLinear(config.heads * dim, config.hidden_size, build, bias=out_bias)
        self.q_norm = RMSNorm(dim, config.norm_eps, build) if head_norm else None
        self.k_norm = RMSNorm(dim, config.norm_eps, build) if head_norm else None
        self.heads, self.kv_heads = self.qkv_proj.heads, self.qkv_proj.kv_heads
        self.attend = Attention(layer)

    def project(self, x: torch.Tensor, cos_sin: torch.Tensor, ctx: AttentionContext | None = None) -> torch.Tensor:
        """x [T, hidden] → turned q, turned k and v of this rank, by heads: [T, Hq + 2 Hkv, d]. With `ctx`, k and v are
        written to the cache as well."""
        return self.turned(self.qkv_proj(x), cos_sin, ctx)

    def turned(self, qkv: torch.Tensor, cos_sin: torch.Tensor, ctx: AttentionContext | None = None) -> torch.Tensor:
        """`project` behind its product: qkv [T, (Hq + 2 Hkv) d]."""
        turning, layer = self._turning(cos_sin), self.attend.layer
        how = (turning.cos_sin, turning.heads, turning.kv_heads, turning.q_norm, turning.k_norm, turning.eps)
        if ctx is None or self.writer is None:
            return self.ops.turn(qkv, *how)
        return self.writer.turn_and_write(qkv, *how, ctx.keys[layer], ctx.values[layer], ctx.slots)

    def attended(self, qkv: torch.Tensor, cos_sin: torch.Tensor, ctx: AttentionContext) -> torch.Tensor:
        """`turned` with the cache written and `attention` over it: [T, (Hq + 2 Hkv) d] → [T, Hq d], in one kernel where
        the backend has it."""
        if isinstance(ctx.backend, WholeBackend):
            layer = self.attend.layer
            whole = ctx.backend.turn_and_attend(qkv, self._turning(cos_sin), ctx.keys[layer], ctx.values[layer], ctx)
            if whole is not None:
                return whole
        return self.attention(self.turned(qkv, cos_sin, ctx), ctx, written=True)

    def _turning(self, cos_sin: torch.Tensor) -> Turning:
        q_norm = None if self.q_norm is None else self.q_norm.weight
        k_norm = None if self.k_norm is None else self.k_norm.weight
        return Turning(cos_sin, self.heads, self.kv_heads, q_norm, k_norm, self.eps)

    def attention(self, qkv: torch.Tensor, ctx: AttentionContext, *, written: bool) -> torch.Tensor:
        """[T, Hq + 2 Hkv, d] → [T, Hq d]. written: k and v are in the cache already."""
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        if written and isinstance(ctx.backend, ReadingBackend):
            layer = self.attend.layer
            return ctx.backend.read(q, ctx.keys[layer], ctx.values[layer], ctx).flatten(1)
        return self.attend(q, k, v, ctx).flatten(1)

    def writes(self, ctx: AttentionContext) -> bool:
        """Whether the kernel that turns can write to the cache too, and the attention only reads it."""
        return self.writer is not None and isinstance(ctx.backend, ReadingBackend)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig, build: Build) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        parts = ("gate_proj", "up_proj")
        self.ops = build.ops
        self.gate_up_proj = ColumnLinear(hidden, (inner, inner), build, parts=parts, bias=config.mlp_bias)
        self.down_proj = RowLinear(inner, hidden, build, bias=config.mlp_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.ops.silu_mul(self.gate_up_proj(x)))


class DecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig, attention: SelfAttention, build: Build) -> None:
        super().__init__()
        self.rows = build.rows
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps, build)
        self.self_attn = attention
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps, build)
        self.mlp = GatedMLP(config, build)

    def first(self, x: torch.Tensor, cos_sin: torch.Tensor, ctx: AttentionContext | None = None) -> torch.Tensor:
        """`before_attention` where nothing flows past yet."""
        return self.self_attn.project(self.input_layernorm(x), cos_sin, ctx)

    def before_attention(
        self, x: torch.Tensor, residual: torch.Tensor, cos_sin: torch.Tensor, ctx: AttentionContext | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, hidden] twice → [T, Hq + 2 Hkv, d] and the residual with x added. With `ctx` all rows are there, and
        their k and v are written to the cache."""
        normed, residual = self.input_layernorm.add(x, residual)
        return self.self_attn.project(normed, cos_sin, ctx), residual

    def after_attention(self, attended: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, Hq d] and the residual → what the MLP gives and the residual, [T, hidden] each."""
        normed, residual = self.post_attention_layernorm.add(self.self_attn.o_proj(attended), residual)
        return self.mlp(normed), residual

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None, cos_sin: torch.Tensor, ctx: AttentionContext
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x and residual [T, hidden], of which the sum is what the layer sees; no residual before the first layer."""
        written = self.rows.tile is None and self.self_attn.writes(ctx)
        writing = ctx if written else None
        if residual is None:
            qkv, residual = self.rows.apply(functools.partial(self.first, ctx=writing), x, cos_sin), x
        else:
            before = functools.partial(self.before_attention, ctx=writing)
            qkv, residual = self.rows.apply(before, x, residual, cos_sin)
        return self.rows.apply(self.after_attention, self.self_attn.attention(qkv, ctx, written=written), residual)


class Decoder(nn.Module):
    """Embedding, layers and final norm, under the names that checkpoints use."""

    def __init__(self, config: ModelConfig, layers: list[DecoderLayer], build: Build) -> None:
        super().__init__()
        self.embed_tokens = VocabEmbedding(config.vocab_size, config.hidden_size, build)
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(config.hidden_size, config.norm_eps, build)


class CausalLM(nn.Module):
    """A whole model. A family says only how its attention differs."""

    def __init__(self, config: ModelConfig, build: Build) -> None:
        super().__init__()
        self.rows = build.rows
        # Sums over ranks come between a product and what follows it, and tiles of rows have kernels of their own.
        alone = build.rows.tile is None and build.shard.size == 1
        self.fused = build.ops if alone and isinstance(build.ops, FusedOps) else None
        self.rotary = RotaryTable(config.rope, config.head_dim, config.max_position, build)
        layers = [DecoderLayer(config, self.attention(config, i, build), build) for i in range(config.layers)]
        self.model = Decoder(config, layers, build)
        self.lm_head = None if config.tied else VocabEmbedding(config.vocab_size, config.hidden_size, build)

    def attention(self, config: ModelConfig, layer: int, build: Build) -> SelfAttention:
        """Layer `layer`'s attention in this family."""
        raise NotImplementedError

    @functools.cached_property
    def spans(self) -> Spans | None:
        """The kernel of whole spans, made when a step first asks, which is before any is captured."""
        return self.fused.spans(span_weights(self.model)) if isinstance(self.fused, SpanningOps) else None

    @property
    def deterministic(self) -> bool:
        """Whether a row's hidden state is the same bits whatever rows are beside it (given such an attention
        backend)."""
        return self.rows.tile is not None

    def forward(self, input_ids: torch.Tensor, ctx: AttentionContext) -> torch.Tensor:
        """input_ids [T] int64 → hidden states behind the final norm [T, hidden]."""
        x = self.model.embed_tokens(input_ids)
        cos_sin = self.rotary(ctx.positions)
        if self.fused is not None and isinstance(ctx.backend, ReadingBackend) and self.fused.fuses(x):
            spans = self.spans
            if spans is not None and x.shape[0] <= spans.most_rows:
                return spanned_layers(self.model, spans, x, cos_sin, ctx)
            return fused_layers(self.model, self.fused, x, cos_sin, ctx)
        residual = None
        for layer in self.model.layers:
            x, residual = layer(x, residual, cos_sin, ctx)
        if residual is None:
            return self.rows.apply(self.model.norm, x)
        return self.rows.apply(self._last_norm, x, residual)

    def compile_layers(self) -> None:
        """Has torch.compile make kernels for what lies between the attentions, at the first step that runs them."""
        for layer in self.model.layers:
            for name in ("first", "before_attention", "after_attention"):
                # One set of kernels for any number of rows: a step's size must not mean a compilation.
                setattr(layer, name, torch.compile(getattr(layer, name), dynamic=True))

    def _last_norm(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.model.norm.add(x, residual)[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [M, hidden] of the rows that need them → [M, vocab] in the model's dtype."""
        return self.rows.apply(self.head.logits, hidden)

    def own_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The same for the ids of this rank alone: [M, rows of the head here]."""
        return self.rows.apply(self.head.own_logits, hidden)

    @property
    def head(self) -> VocabEmbedding:
        """What gives the logits."""
        return self.model.embed_tokens if self.lm_head is None else self.lm_head
