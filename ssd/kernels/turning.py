"""Per-head norm of q and k and rotary embedding in one kernel, which can also write k and v to the paged cache."""

# mypy: allow-untyped-defs
import triton
import triton.language as tl

from ssd.kernels.dependent import let_next_start, wait_for_previous
from ssd.kernels.norms import widened


@triton.jit
def turn_heads(
    qkv,
    cos_sin,
    q_norm,
    k_norm,
    out,
    cache_k,
    cache_v,
    slots,
    qkv_stride,
    angle_stride,
    key_stride,
    value_stride,
    eps,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    half: tl.constexpr,
    half_wide: tl.constexpr,
    block: tl.constexpr,
    normed: tl.constexpr,
    written: tl.constexpr,
    early: tl.constexpr,
):
    """Grid (tokens, heads of q, k and v / block). qkv [T, (Hq + 2 Hkv) d] → out [T, Hq + 2 Hkv, d]; half = d / 2.

    The norm is rounded to the dtype before the rotation, as torch does it. Where `written`, turned k and v also go to
    the token's slot of the cache; a negative slot writes nowhere.
    """
    wait_for_previous(early)
    let_next_start(early)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * block + tl.arange(0, block)
    channel = tl.arange(0, half_wide)
    known = channel < half
    mask = (head < heads + 2 * kv_heads)[:, None] & known[None, :]
    is_query = (head < heads)[:, None]
    is_value = (head >= heads + kv_heads)[:, None]
    place = head[:, None] * (2 * half) + channel[None, :]
    first_in = tl.load(qkv + token * qkv_stride + place, mask=mask, other=0.0)
    second_in = tl.load(qkv + token * qkv_stride + place + half, mask=mask, other=0.0)
    cos = tl.load(cos_sin + token * angle_stride + channel, mask=known, other=0.0)[None, :]
    sin = tl.load(cos_sin + token * angle_stride + half + channel, mask=known, other=0.0)[None, :]
    first, second = widened(first_in), widened(second_in)
    if normed:
        square = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        scale = (1.0 / tl.sqrt(square / (2 * half) + eps))[:, None]
        q_first = widened(tl.load(q_norm + channel, mask=known, other=0.0))[None, :]
        q_second = widened(tl.load(q_norm + half + channel, mask=known, other=0.0))[None, :]
        k_first = widened(tl.load(k_norm + channel, mask=known, other=0.0))[None, :]
        k_second = widened(tl.load(k_norm + half + channel, mask=known, other=0.0))[None, :]
        first = widened((first * scale * tl.where(is_query, q_first, k_first)).to(first_in.dtype))
        second = widened((second * scale * tl.where(is_query, q_second, k_second)).to(first_in.dtype))
    turned_first = (first * cos - second * sin).to(first_in.dtype)
    turned_second = (second * cos + first * sin).to(first_in.dtype)
    first_out = tl.where(is_value, first_in, turned_first)
    second_out = tl.where(is_value, second_in, turned_second)
    row = out + token * ((heads + 2 * kv_heads) * 2 * half)
    tl.store(row + place, first_out, mask=mask)
    tl.store(row + place + half, second_out, mask=mask)
    if written:
        slot = tl.load(slots + token)
        as_key = mask & (head >= heads)[:, None] & (head < heads + kv_heads)[:, None] & (slot >= 0)
        keys = cache_k + slot * key_stride + place - heads * 2 * half
        tl.store(keys, first_out, mask=as_key)
        tl.store(keys + half, second_out, mask=as_key)
        as_value = mask & is_value & (slot >= 0)
        values = cache_v + slot * value_stride + place - (heads + kv_heads) * 2 * half
        tl.store(values, first_out, mask=as_value)
        tl.store(values + half, second_out, mask=as_value)
