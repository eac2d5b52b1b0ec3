"""A step of few tokens through all layers: with fused products, seven kernels a layer, or with whole spans, four."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ssd.layers.attention import AttentionContext
from ssd.layers.fused import Affine, FusedOps, Spans, SpanWeights, Stream
from ssd.layers.linear import ColumnLinear, RowLinear
from ssd.layers.norm import RMSNorm

if TYPE_CHECKING:
    from ssd.models.decoder import Decoder, DecoderLayer


def fused_layers(
    model: Decoder, ops: FusedOps, x: torch.Tensor, cos_sin: torch.Tensor, ctx: AttentionContext
) -> torch.Tensor:
    """Embedded tokens [T, hidden] → hidden states behind the final norm [T, hidden]. The attention writes keys and
    values while it turns them, and its backend reads them."""
    layers: list[DecoderLayer] = list(model.layers)  # type: ignore[arg-type]
    norms: list[RMSNorm] = [*(layer.input_layernorm for layer in layers[1:]), model.norm]
    qkv = layers[0].self_attn.qkv_proj(layers[0].input_layernorm(x))
    stream = None
    for layer, following in zip(layers, norms, strict=True):
        if stream is not None:
            product = layer.self_attn.qkv_proj
            qkv = ops.scaled_linear(stream, product.weight, product.bias, layer.input_layernorm.eps)
        attended = layer.self_attn.attended(qkv, cos_sin, ctx)
        stream = _rest(layer, ops, attended, x if stream is None else stream.total, following)
    return model.norm(x if stream is None else stream.total)


def _rest(
    layer: DecoderLayer, ops: FusedOps, attended: torch.Tensor, total: torch.Tensor, following: RMSNorm
) -> Stream:
    """From the heads' results [T, Hq d] and the stream before the layer to the stream behind it."""
    out, norm = layer.self_attn.o_proj, layer.post_attention_layernorm
    middle = ops.linear_into(attended, out.weight, out.bias, total, norm.weight)
    up, down = layer.mlp.gate_up_proj, layer.mlp.down_proj
    inner = ops.scaled_linear(middle, up.weight, up.bias, norm.eps, gated=True)
    return ops.linear_into(inner, down.weight, down.bias, middle.total, following.weight)


def spanned_layers(
    model: Decoder, spans: Spans, x: torch.Tensor, cos_sin: torch.Tensor, ctx: AttentionContext
) -> torch.Tensor:
    """The same where one kernel computes all that lies between two attentions."""
    layers: list[DecoderLayer] = list(model.layers)  # type: ignore[arg-type]
    spans.begin()
    total, qkv = x, layers[0].self_attn.qkv_proj(layers[0].input_layernorm(x))
    for number, layer in enumerate(layers):
        total, following = spans.run(number, layer.self_attn.attended(qkv, cos_sin, ctx), total)
        qkv = qkv if following is None else following
    return model.norm(total)


def span_weights(model: Decoder) -> list[SpanWeights]:
    """What lies behind each layer's attention."""
    layers: list[DecoderLayer] = list(model.layers)  # type: ignore[arg-type]
    norms: list[RMSNorm] = [*(layer.input_layernorm for layer in layers[1:]), model.norm]
    products = [*(layer.self_attn.qkv_proj for layer in layers[1:]), None]
    return [
        SpanWeights(
            out=_affine(layer.self_attn.o_proj),
            up=_affine(layer.mlp.gate_up_proj),
            down=_affine(layer.mlp.down_proj),
            qkv=None if product is None else _affine(product),
            norm=(layer.post_attention_layernorm.weight, layer.post_attention_layernorm.eps),
            next_norm=(norm.weight, norm.eps),
        )
        for layer, norm, product in zip(layers, norms, products, strict=True)
    ]


def _affine(product: ColumnLinear | RowLinear) -> Affine:
    return Affine(product.weight, product.bias)
