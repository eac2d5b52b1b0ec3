"""Rejection verification: proposals drawn from any law q are corrected to the target's own law p, exactly.

A proposal token s is accepted when u < p(s) / q(s), u uniform in [0, 1); the first one refused is replaced by a draw
from max(p - q, 0), and after K acceptances one more token is drawn from p (Leviathan, Kalman, Matias 2023; Chen et al.
2023). Token i of the output depends on noise of positions <= i alone, each decision on a stream of its own, so noise
that an abandoned proposal has used at a later position tells nothing about the text that was committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd.speculation.params import Draw
from ssd.speculation.philox import NoiseStream, seed_pattern
from ssd.speculation.sampling import DrawRow, reports
from ssd.speculation.sparse_law import SparseLaw, all_words, filtered_laws, packed, point_mass, race
from ssd.speculation.verify import Verdict

# Blocks are handled in groups of at most this many probabilities, which bounds the float64 copies.
_CPU_GROUP = 1 << 22
_DEVICE_GROUP = 1 << 25


@dataclass(frozen=True, slots=True)
class Block:
    """The proposal of one sequence: ids s_1..s_K and the law that each was drawn from (None = a point mass)."""

    ids: tuple[int, ...]
    laws: tuple[SparseLaw | None, ...]

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.laws):
            raise ValueError(f"{len(self.ids)} proposal tokens need as many laws, got {len(self.laws)}")
        for token, law in zip(self.ids, self.laws, strict=True):
            if token < 0 or (law is not None and token not in law.ids):
                raise ValueError(f"proposal token {token} cannot have been drawn from its law")


def reject(
    logits: Tensor, rows: Sequence[DrawRow], proposal_ids: Sequence[int], laws: Sequence[SparseLaw | None]
) -> Verdict:
    """Verify one proposal of K tokens against logits [K + 1, V] and rows as `sampling.block_rows` makes them."""
    return reject_blocks(logits, rows, [Block(tuple(proposal_ids), tuple(laws))])[0]


def reject_blocks(logits: Tensor, rows: Sequence[DrawRow], blocks: Sequence[Block]) -> list[Verdict]:
    """Verify the proposals of many sequences at once.

    logits [N, V] and rows hold K + 1 entries for each block, one block after the other, N in all. A verdict is a
    function of its own rows, block, seed and positions. Raises ValueError when the counts differ, a proposal or a law
    names a token outside the vocabulary, or a row of logits holds NaN, +inf or nothing possible.
    """
    wanted = sum(len(block.ids) + 1 for block in blocks)
    if logits.dim() != 2 or not wanted == len(rows) == logits.shape[0]:
        raise ValueError(f"{len(blocks)} blocks need {wanted} rows, got {len(rows)} and logits {tuple(logits.shape)}")
    largest = max((max((*b.ids, *(law.ids[-1] for law in b.laws if law)), default=-1) for b in blocks), default=-1)
    if largest >= logits.shape[1]:
        raise ValueError(f"token {largest} is outside the vocabulary of {logits.shape[1]}")
    limit = _CPU_GROUP if logits.device.type == "cpu" else _DEVICE_GROUP
    verdicts: list[Verdict] = []
    start, group = 0, list[Block]()
    size = 0
    for block in blocks:
        if group and (size + len(block.ids) + 1) * logits.shape[1] > limit:
            verdicts += _group_verdicts(logits[start : start + size], rows[start : start + size], group)
            start, size, group = start + size, 0, []
        group.append(block)
        size += len(block.ids) + 1
    return verdicts + _group_verdicts(logits[start:], rows[start:], group)


@dataclass(frozen=True, slots=True)
class Blocks:
    """B proposals of at most K tokens as tensors; all on one device.

    starts      int64 [B]: row of p that y_0 of each block is drawn from; the next rows belong to the next tokens
    ids         int64 [B, K]: proposal tokens, -1 past the end
    law_ids     int64 [B, K, M], probabilities float64 [B, K, M]: each token's q, padded with probability 0
    seeds       int64 [B]: bit patterns
    positions   int64 [B]: absolute position of y_0
    """

    starts: Tensor
    ids: Tensor
    law_ids: Tensor
    probabilities: Tensor
    seeds: Tensor
    positions: Tensor


def settle(p: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
    """Acceptances k and the token y_k after them, both int64 [B], for the target's laws p float64 [N, V]."""
    count, width = blocks.ids.shape
    proposed = blocks.ids >= 0
    places = torch.arange(width, device=p.device)
    rows = (blocks.starts[:, None] + places).clamp(max=p.shape[0] - 1)
    p_token = p[rows, blocks.ids.clamp(min=0)]
    q_token = (blocks.probabilities * (blocks.law_ids == blocks.ids[..., None])).sum(dim=-1)
    chance = _uniform(blocks.seeds[:, None].expand(-1, width), blocks.positions[:, None] + places)
    accepted = ((chance < p_token / q_token) & proposed).to(torch.int64).cumprod(dim=-1).sum(dim=-1)
    refused = accepted < proposed.sum(dim=-1)
    positions = blocks.positions + accepted
    last = p[blocks.starts + accepted]
    tokens = torch.empty(count, dtype=torch.int64, device=p.device)
    at = accepted[refused]
    left = residual(last[refused], blocks.law_ids[refused, at], blocks.probabilities[refused, at])
    # After K acceptances with the noise of the coupled draw: without a proposal it is the token of plain decoding.
    for rows_of, weights, stream in (
        (refused, left, NoiseStream.RESIDUAL),
        (~refused, last[~refused], NoiseStream.TARGET),
    ):
        every = torch.arange(p.shape[1], device=p.device).expand_as(weights)
        tokens[rows_of] = race(every, weights, blocks.seeds[rows_of], positions[rows_of], stream)
    return accepted, tokens


def residual(p: Tensor, law_ids: Tensor, probabilities: Tensor) -> Tensor:
    """max(p - q, 0) for p [R, V] and sparse q (law_ids, probabilities [R, M]); not normalised, [R, V].

    Where rounding leaves nothing (p = q but for the last bits) it is p itself, which is then as good.
    """
    left = p.scatter_add(-1, law_ids, -probabilities).clamp_(min=0.0)
    return torch.where(left.amax(dim=-1, keepdim=True) > 0.0, left, p)


def _uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """Uniform float64 numbers in [0, 1), multiples of 2^-53, for seeds and positions of one shape."""
    words = all_words(seeds.reshape(-1), positions.reshape(-1), 2, NoiseStream.ACCEPT)
    return ((words[:, 0] << 21) | (words[:, 1] >> 11)).to(torch.float64).mul_(2.0**-53).view(positions.shape)


def _group_verdicts(logits: Tensor, rows: Sequence[DrawRow], blocks: Sequence[Block]) -> list[Verdict]:
    if not blocks:
        return []
    starts = [0]
    for block in blocks:
        starts.append(starts[-1] + len(block.ids) + 1)
    accepted, tokens = settle(filtered_laws(logits, rows), _as_tensors(blocks, rows, starts, logits.device))
    emitted: list[list[Draw]] = []
    for block, k, token in zip(blocks, accepted.tolist(), tokens.tolist(), strict=True):
        emitted.append([Draw(one) for one in (*block.ids[:k], token)])
    asked = [
        (b, j) for b, draws in enumerate(emitted) for j in range(len(draws)) if rows[starts[b] + j].params.logprobs >= 0
    ]
    if asked:
        where = [starts[b] + j for b, j in asked]
        chosen = torch.tensor([emitted[b][j].id for b, j in asked], dtype=torch.int64, device=logits.device)
        drawn = reports(logits[where], chosen, [rows[row].params.logprobs for row in where])
        for (b, j), report in zip(asked, drawn, strict=True):
            emitted[b][j] = report
    return [Verdict(len(draws) - 1, tuple(draws)) for draws in emitted]


def _as_tensors(
    blocks: Sequence[Block], rows: Sequence[DrawRow], starts: Sequence[int], device: torch.device
) -> Blocks:
    width = max(len(block.ids) for block in blocks)
    filler = point_mass(0)
    laws: list[SparseLaw] = []
    for block in blocks:
        laws += [law or point_mass(token) for token, law in zip(block.ids, block.laws, strict=True)]
        laws += [filler] * (width - len(block.ids))
    law_ids, probabilities = packed(laws)
    firsts = [rows[start] for start in starts[:-1]]
    shape = (len(blocks), width, law_ids.shape[-1])
    ids = [(*block.ids, *(-1,) * (width - len(block.ids))) for block in blocks]
    return Blocks(
        starts=torch.tensor(starts[:-1], dtype=torch.int64, device=device),
        ids=torch.tensor(ids, dtype=torch.int64, device=device).view(len(blocks), width),
        law_ids=law_ids.view(shape).to(device),
        probabilities=probabilities.view(shape).to(device),
        seeds=torch.tensor([seed_pattern(row.params.seed) for row in firsts], dtype=torch.int64, device=device),
        positions=torch.tensor([row.position for row in firsts], dtype=torch.int64, device=device),
    )
