"""Counter-based noise: Philox4x32-10 and the Gumbel numbers made from it.

Philox is the generator of Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). A number
depends on its key and counter alone, so target, draft and any later replay compute the same noise for (seed, position,
token) without exchanging anything.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LANES = 4

# Temporaries of about this many numbers stay in a CPU core's cache; larger ones make each of the ~100 passes a memory
# walk.
_CPU_CHUNK = 1 << 15

Quad = tuple[Tensor, Tensor, Tensor, Tensor]


class NoiseStream(IntEnum):
    """Independent noise for one (seed, position): the third counter word."""

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


def seed_pattern(seed: int) -> int:
    """The signed 64-bit integer with the bits of an unsigned 64-bit seed, which is what an int64 tensor can hold."""
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed must be an unsigned 64-bit integer, got {seed}")
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def philox4x32(counter: Quad, key: tuple[Tensor, Tensor]) -> Quad:
    """Ten rounds of Philox4x32 on int64 tensors that hold uint32 values; shapes broadcast.

    Products wrap modulo 2^64, so bits 32..63 are the high word whatever the sign of the int64 says.
    """
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for round_index in range(_ROUNDS):
        if round_index:
            k0 = (k0 + _WEYL[0]) & _MASK
            k1 = (k1 + _WEYL[1]) & _MASK
        product0 = x0 * _MULTIPLIERS[0]
        product1 = x2 * _MULTIPLIERS[1]
        # Low words keep their upper halves until the end: they are only ever xor-ed, and the mask below drops them.
        high1 = (product1 >> 32) ^ (x1 ^ k0)
        high0 = (product0 >> 32) ^ (x3 ^ k1)
        x0, x1, x2, x3 = high1.bitwise_and_(_MASK), product1, high0.bitwise_and_(_MASK), product0
    x1 = x1 & _MASK
    x3 = x3 & _MASK
    shape = torch.broadcast_shapes(x0.shape, x1.shape, x2.shape, x3.shape)
    return x0.expand(shape), x1.expand(shape), x2.expand(shape), x3.expand(shape)


def uniform_words(
    seeds: Tensor, positions: Tensor, vocab: int, *, stream: int = NoiseStream.TARGET, first: int = 0
) -> Tensor:
    """The uint32 behind the noise of tokens first .. first + vocab - 1: int64 [N, vocab] from seeds [N] and positions
    [N], both int64. `first` is a multiple of 4."""
    # Branches of one tree often stand at the same position: their noise is the same and computed once.
    distinct, of_row = torch.unique(torch.stack((seeds, positions), dim=-1), dim=0, return_inverse=True)
    if len(distinct) < len(seeds):
        words = uniform_words(distinct[:, 0], distinct[:, 1], vocab, stream=stream, first=first)
        return words.index_select(0, of_row)
    count = seeds.shape[0]
    blocks = -(-vocab // _LANES)
    words = torch.empty((count, blocks, _LANES), dtype=torch.int64, device=seeds.device)
    chunk = blocks if seeds.device.type != "cpu" else max(1, _CPU_CHUNK // max(1, count))
    for start in range(0, blocks, chunk):
        block = torch.arange(start, min(blocks, start + chunk), device=seeds.device)[None, :] + first // _LANES
        torch.stack(noise_words(seeds, positions, block, stream), dim=-1, out=words[:, start : start + chunk])
    return words.view(count, blocks * _LANES)[:, :vocab]


def gumbel(
    seeds: Tensor,
    positions: Tensor,
    vocab: int,
    *,
    stream: int = NoiseStream.TARGET,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
) -> Tensor:
    """Gumbel(0, 1) noise [N, vocab] for seeds [N] (int64 bit patterns) and absolute token positions [N] (int64)."""
    if device is not None:
        seeds, positions = seeds.to(device), positions.to(device)
    return gumbel_of(uniform_words(seeds, positions, vocab, stream=stream)).to(dtype)


def gumbel_at(
    seeds: Tensor,
    positions: Tensor,
    token_ids: Tensor,
    *,
    stream: int = NoiseStream.TARGET,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """The numbers that `gumbel` gives to token_ids [N, M] (int64, >= 0), without computing the others: [N, M]."""
    quad = torch.stack(noise_words(seeds, positions, token_ids // _LANES, stream), dim=-1)
    words = quad.gather(-1, (token_ids % _LANES)[..., None])[..., 0]
    return gumbel_of(words).to(dtype)


def gumbel_of(words: Tensor) -> Tensor:
    """float64 Gumbel numbers of uint32 words: -log(-log u), u = (word + 1/2) / 2^32, which is never 0 or 1."""
    uniform = (words.to(torch.float64) + 0.5).mul_(2.0**-32)
    return uniform.log_().neg_().log_().neg_()


def noise_words(seeds: Tensor, positions: Tensor, blocks: Tensor, stream: int) -> Quad:
    """Philox outputs for seeds [N], positions [N] and token blocks [1 or N, M]: four [N, M]."""
    key = (seeds & _MASK)[:, None], ((seeds >> 32) & _MASK)[:, None]
    word2 = torch.full((1, 1), int(stream), dtype=torch.int64, device=seeds.device)
    return philox4x32((positions[:, None], blocks, word2, torch.zeros_like(word2)), key)
