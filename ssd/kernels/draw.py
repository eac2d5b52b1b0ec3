"""Greedy and unfiltered coupled drawing on the GPU, equal to ssd.speculation.sampling token by token.

Three passes over splits of the vocabulary, none of which the host waits for: each split's maximum, each split's best
tokens, and the merge. Scores are float64 as in the reference. To spare logarithms a token's score is first bounded from
above (-log u >= 1 - u, in float32) and computed only when no bound beats what is known; the order found is that of the
exact scores, equal ones by id. The logarithm is the CUDA library's, which torch also uses on a GPU; where another
library's differs in the last bit, only tokens within 1e-15 of each other can change places.
"""

# mypy: allow-untyped-defs
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ssd.layers.shard import VocabPart
from ssd.speculation.philox import NoiseStream

MOST_CANDIDATES = 32
_SPLIT = 2048
_LOW = tl.constexpr(float("-inf"))
# Above the error of a float32 logarithm (of numbers from 2^-33 to 1), below any gap that matters.
_MARGIN = tl.constexpr(1e-4)
_NONE = tl.constexpr(0x7FFFFFFF)


@dataclass(frozen=True)
class Drawn:
    """ids [N, count] int64, best first; status [N] int32: 0, or 1 where a row holds NaN, +inf or no possible token, so
    that its ids mean nothing."""

    ids: torch.Tensor
    status: torch.Tensor


@triton.jit
def words_of(seed, position, block, stream):
    """The four uint32 of Philox4x32-10 behind tokens 4 block .. 4 block + 3: seed and position int64, block int32."""
    zero = block * 0
    return tl.philox(seed, zero + position.to(tl.int32), block, zero + stream, zero)


@triton.jit
def exact_score(logit, peak, temperature, seed, position, token, stream):
    """(logit - peak) / temperature + Gumbel noise of one token, float64."""
    w0, w1, w2, w3 = words_of(seed, position, token // 4, stream)
    lane = token % 4
    word = tl.where(lane == 0, w0, tl.where(lane == 1, w1, tl.where(lane == 2, w2, w3)))
    uniform = (word.to(tl.float64) + 0.5) * 2.3283064365386963e-10
    return (logit - peak) / temperature - tl.log(-tl.log(uniform))


@triton.jit
def split_peaks(logits, peaks, stride, vocab, splits, block: tl.constexpr):
    """Grid (rows, splits): the maximum of each split in the precision of `peaks`, NaN where it holds one."""
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = split * block + tl.arange(0, block)
    x = tl.load(logits + row * stride + token, mask=token < vocab, other=_LOW).to(peaks.dtype.element_ty)
    broken = tl.max((x != x).to(tl.int32), 0) > 0
    peak = tl.max(tl.where(x != x, _LOW, x), 0)
    tl.store(peaks + row * splits + split, tl.where(broken, float("nan"), peak))


@triton.jit
def split_best(
    logits,
    seeds,
    positions,
    temperatures,
    peaks,
    scores,
    ids,
    stride,
    vocab,
    splits,
    all_splits,
    first,
    stream,
    count: tl.constexpr,
    block: tl.constexpr,
    splits_wide: tl.constexpr,
):
    """Grid (rows, splits): the `count` best of each split in order, score and id; id _NONE where it has no more. The
    logits are those of ids `first` and up, and `peaks` has all_splits of the whole vocabulary."""
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    quad = first // 4 + split * (block // 4) + tl.arange(0, block // 4)
    token = split * block + tl.arange(0, block)
    x = tl.load(logits + row * stride + token, mask=token < vocab, other=_LOW).to(tl.float64)
    x = tl.where(x != x, _LOW, x)
    temperature = tl.load(temperatures + row).to(tl.float64)
    index = tl.arange(0, splits_wide)
    all_peaks = tl.load(peaks + row * all_splits + index, mask=index < all_splits, other=_LOW)
    peak = tl.max(all_peaks, 0).to(tl.float64)
    seed, position = tl.load(seeds + row), tl.load(positions + row)
    keys = x
    if temperature > 0.0:
        w0, w1, w2, w3 = words_of(seed, position, quad, stream)
        words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [block])
        beyond = ((words ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10
        scaled = (x - peak) / temperature
        keys = tl.where(x > _LOW, scaled - tl.log(beyond).to(tl.float64) + _MARGIN, _LOW)
        keys = tl.where(keys == keys, keys, _LOW)
    # Greedy scores are exact from the start, and so is that of an impossible token.
    exact = tl.where(temperature == 0.0, token >= 0, keys == _LOW)
    left = token < vocab
    found = tl.program_id(1) * 0
    while found < count:
        best = tl.max(tl.where(left, keys, _LOW), 0)
        leading = left & (keys == best)
        bound = tl.min(tl.where(leading & (exact == 0), token, _NONE), 0)
        if bound != _NONE:
            logit = tl.load(logits + row * stride + bound).to(tl.float64)
            score = exact_score(logit, peak, temperature, seed, position, bound + first, stream)
            keys = tl.where(token == bound, score, keys)
            exact = exact | (token == bound)
        else:
            chosen = tl.min(tl.where(leading, token, _NONE), 0)
            place = (row * splits + split) * count + found
            tl.store(scores + place, best)
            tl.store(ids + place, tl.where(chosen == _NONE, _NONE, chosen + first))
            left = left & (token != chosen)
            found += 1


@triton.jit
def merge_best(
    scores,
    ids,
    peaks,
    out,
    status,
    splits,
    count: tl.constexpr,
    wide: tl.constexpr,
    splits_wide: tl.constexpr,
):
    """Grid (rows): the `count` best of all splits' best, and whether the row's maximum is finite."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, splits_wide)
    all_peaks = tl.load(peaks + row * splits + split, mask=split < splits, other=_LOW)
    broken = tl.max((all_peaks != all_peaks).to(tl.int32), 0) > 0
    peak = tl.max(tl.where(all_peaks != all_peaks, _LOW, all_peaks), 0)
    tl.store(status + row, (broken | (peak == _LOW) | (peak == float("inf"))).to(tl.int32))
    index = tl.arange(0, wide)
    known = index < splits * count
    keys = tl.load(scores + row * splits * count + index, mask=known, other=_LOW)
    tokens = tl.load(ids + row * splits * count + index, mask=known, other=_NONE)
    for place in range(count):
        best = tl.max(tl.where(tokens != _NONE, keys, _LOW), 0)
        chosen = tl.min(tl.where(keys == best, tokens, _NONE), 0)
        tl.store(out + row * count + place, chosen.to(tl.int64))
        keys = tl.where(tokens == chosen, _LOW, keys)
        tokens = tl.where(tokens == chosen, _NONE, tokens)


def draw_ids(
    logits: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    temperature: torch.Tensor,
    *,
    count: int = 1,
    stream: int = NoiseStream.TARGET,
    part: VocabPart | None = None,
) -> Drawn:
    """The `count` best ids of each row of logits [N, V] (any float dtype) in the order of the draw.

    seeds (bit patterns), positions: int64 [N], positions below 2^32; temperature [N] float32 or float64, 0 = greedy. A
    temperature is taken as it is, so float64 where it must equal a Python float. Captured in a CUDA graph as it stands:
    the host waits for nothing. ValueError for a count outside 1..min(32, V).

    part: the logits' first columns are those of this part of the vocabulary, which has at least `count` ids in all.
    """
    rows, width = logits.shape
    most = MOST_CANDIDATES if part is not None else min(MOST_CANDIDATES, width)
    if not 1 <= count <= most:
        raise ValueError(f"count must be between 1 and {most}, got {count}")
    first, vocab = (0, width) if part is None else (part.first, part.count)
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    device = logits.device
    splits = -(-width // _SPLIT)
    ids = torch.empty((rows, count), dtype=torch.int64, device=device)
    status = torch.empty(rows, dtype=torch.int32, device=device)
    if not rows:
        return Drawn(ids, status)
    precision = torch.float64 if logits.dtype == torch.float64 else torch.float32
    peaks = torch.empty((rows, splits), dtype=precision, device=device)
    scores = torch.empty((rows, splits, count), dtype=torch.float64, device=device)
    best = torch.empty((rows, splits, count), dtype=torch.int32, device=device)
    split_peaks[(rows, splits)](logits, peaks, logits.stride(0), vocab, splits, block=_SPLIT, num_warps=4)
    if part is not None:
        peaks = part.gather(peaks).contiguous()
    all_splits = peaks.shape[1]
    splits_wide = triton.next_power_of_2(all_splits)
    split_best[(rows, splits)](
        logits,
        seeds,
        positions,
        temperature,
        peaks,
        scores,
        best,
        logits.stride(0),
        vocab,
        splits,
        all_splits,
        first,
        int(stream),
        count=count,
        block=_SPLIT,
        splits_wide=splits_wide,
        num_warps=4,
    )
    if part is not None:
        scores, best = _of_all(scores, best, part.gather)
    wide = triton.next_power_of_2(all_splits * count)
    merge_best[(rows,)](
        scores, best, peaks, ids, status, all_splits, count=count, wide=wide, splits_wide=splits_wide, num_warps=4
    )
    return Drawn(ids, status)


def _of_all(
    scores: torch.Tensor, ids: torch.Tensor, gather: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """scores float64 and ids int32 [N, splits, count] of each rank → of all ranks, split behind split."""
    rows, splits, count = scores.shape
    # Bits of a number stay what they are in whatever type they travel, and one message costs less than two.
    packed = torch.stack((scores.view(torch.int64), ids.to(torch.int64)), dim=-1)
    everyones = gather(packed.view(rows, splits * count * 2)).view(rows, -1, count, 2)
    return everyones[..., 0].contiguous().view(torch.float64), everyones[..., 1].to(torch.int32).contiguous()
