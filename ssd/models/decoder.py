"""The blocks that every supported family is made of: pre-norm attention and gated MLP around a residual stream.

A layer is two row-wise functions with attention between them; `Build.rows` decides how many rows each call of these
sees.
"""

import torch
from torch import nn
from torch.nn import functional

from ssd.layers.attention import Attention, AttentionContext
from ssd.layers.build import Build
from ssd.layers.embedding import VocabEmbedding
from ssd.layers.linear import ColumnLinear, QKVLinear, RowLinear
from ssd.layers.norm import RMSNorm
from ssd.layers.rotary import RotaryTable, rotate
from ssd.models.config import ModelConfig


class SelfAttention(nn.Module):
    """Grouped-query attention with rotary positions. `head_norm`: q and k are normalised per head (Qwen3)."""

    def __init__(
        self, config: ModelConfig, layer: int, build: Build, *, qkv_bias: bool, out_bias: bool, head_norm: bool = False
    ) -> None:
        super().__init__()
        dim = config.head_dim
        self.head_dim = dim
        self.qkv_proj = QKVLinear(config.hidden_size, config.heads, config.kv_heads, dim, build, bias=qkv_bias)
        self.o_proj = RowLinear(config.heads * dim, config.hidden_size, build, bias=out_bias)
        self.q_norm = RMSNorm(dim, config.norm_eps, build) if head_norm else None
        self.k_norm = RMSNorm(dim, config.norm_eps, build) if head_norm else None
        self.heads, self.kv_heads = self.qkv_proj.heads, self.qkv_proj.kv_heads
        self.attend = Attention(layer)

    def project(self, x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
        """x [T, hidden] → turned q, turned k and v of this rank, by heads: [T, Hq + 2 Hkv, d]."""
        qkv = self.qkv_proj(x).view(len(x), -1, self.head_dim)
        qk, v = qkv.split([self.heads + self.kv_heads, self.kv_heads], dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = qk.split([self.heads, self.kv_heads], dim=1)
            qk = torch.cat([self.q_norm(q), self.k_norm(k)], dim=1)
        return torch.cat([rotate(qk, cos_sin), v], dim=1)

    def attention(self, qkv: torch.Tensor, ctx: AttentionContext) -> torch.Tensor:
        """[T, Hq + 2 Hkv, d] → [T, Hq d]."""
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        return self.attend(q, k, v, ctx).flatten(1)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig, build: Build) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        parts = ("gate_proj", "up_proj")
        self.gate_up_proj = ColumnLinear(hidden, (inner, inner), build, parts=parts, bias=config.mlp_bias)
        self.down_proj = RowLinear(inner, hidden, build, bias=config.mlp_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(functional.silu(gate) * up)


class DecoderLayer(nn.Module):
    def __init__(self, config: ModelConfig, attention: SelfAttention, build: Build) -> None:
        super().__init__()
        self.rows = build.rows
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps, build)
        self.self_attn = attention
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps, build)
        self.mlp = GatedMLP(config, build)

    def before_attention(self, hidden: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
        return self.self_attn.project(self.input_layernorm(hidden), cos_sin)

    def after_attention(self, attended: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.self_attn.o_proj(attended)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))

    def forward(self, hidden: torch.Tensor, cos_sin: torch.Tensor, ctx: AttentionContext) -> torch.Tensor:
        qkv = self.rows.apply(self.before_attention, hidden, cos_sin)
        attended = self.self_attn.attention(qkv, ctx)
        return self.rows.apply(self.after_attention, attended, hidden)


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
        self.rotary = RotaryTable(config.rope, config.head_dim, config.max_position, build)
        layers = [DecoderLayer(config, self.attention(config, i, build), build) for i in range(config.layers)]
        self.model = Decoder(config, layers, build)
        self.lm_head = None if config.tied else VocabEmbedding(config.vocab_size, config.hidden_size, build)

    def attention(self, config: ModelConfig, layer: int, build: Build) -> SelfAttention:
        """Layer `layer`'s attention in this family."""
        raise NotImplementedError

    @property
    def deterministic(self) -> bool:
        """Whether a row's hidden state is the same bits whatever rows are beside it (given such an attention
        backend)."""
        return self.rows.tile is not None

    def forward(self, input_ids: torch.Tensor, ctx: AttentionContext) -> torch.Tensor:
        """input_ids [T] int64 → hidden states before the final norm [T, hidden]."""
        hidden = self.model.embed_tokens(input_ids)
        cos_sin = self.rotary(ctx.positions)
        for layer in self.model.layers:
            hidden = layer(hidden, cos_sin, ctx)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [M, hidden] of the rows that need them → [M, vocab] in the model's dtype."""
        head = self.model.embed_tokens if self.lm_head is None else self.lm_head
        return self.rows.apply(lambda rows: head.logits(self.model.norm(rows)), hidden)
