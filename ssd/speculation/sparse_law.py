"""The draft's side of rejection verification: the law that a proposal token was drawn from, small enough to ship."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ssd.speculation.filters import strict_top, survivors
from ssd.speculation.law import SparseLaw, point_mass
from ssd.speculation.philox import NoiseStream, gumbel_at, gumbel_of, noise_words, seed_pattern
from ssd.speculation.sampling import DrawRow, adjusted_logits

__all__ = [
    "DEFAULT_LAW_SIZE",
    "SparseLaw",
    "draw_from_sparse_law",
    "draw_from_sparse_laws",
    "filtered_laws",
    "packed",
    "point_mass",
    "race",
    "saguaro",
    "sparse_laws",
]

DEFAULT_LAW_SIZE = 64

# Integer masses in units of 2^-40 of the likeliest token add up to the same total in any order, on any machine.
_MASS_UNIT = 2.0**40


def filtered_laws(logits: Tensor, rows: Sequence[DrawRow]) -> Tensor:
    """The law that `draw` draws from, for each row of logits [N, V]: float64 [N, V], every row summing to 1.

    Bias, penalties, forbidden ids, temperature and filters are applied; temperature 0 gives a point mass. Numbers are
    whole multiples of 2^-40 of the row's largest, so tokens less likely than that become impossible. A row's law does
    not depend on the other rows. Raises ValueError when the counts differ or a row holds NaN, +inf or nothing
    possible.
    """
    if logits.dim() != 2 or logits.shape[0] != len(rows):
        raise ValueError(f"{len(rows)} laws need as many rows of logits, got shape {tuple(logits.shape)}")
    adjusted = adjusted_logits(logits, rows).to(torch.float64)
    peak = adjusted.amax(dim=-1, keepdim=True) if len(rows) else adjusted[:, :1]
    broken = (~peak.isfinite()).nonzero()
    if len(broken):
        raise ValueError(f"row {int(broken[0, 0])} of the logits holds NaN, +inf, or no possible token")
    greedy = [i for i, row in enumerate(rows) if row.params.greedy]
    filtered = [i for i, row in enumerate(rows) if row.params.filtered]
    temperature = torch.tensor([row.params.temperature or 1.0 for row in rows], dtype=torch.float64).to(logits.device)
    scaled = (adjusted - peak).div_(temperature[:, None])
    masses = (scaled.exp() * _MASS_UNIT).round_()
    if filtered:
        ids, kept = survivors(scaled[filtered], [rows[i].params for i in filtered])
        left = masses[filtered].gather(-1, ids) * kept
        masses[filtered] = torch.zeros_like(masses[filtered]).scatter_(-1, ids, left)
    if greedy:
        best = strict_top(adjusted[greedy], 1)[1]
        masses[greedy] = torch.zeros_like(masses[greedy]).scatter_(-1, best, 1.0)
    return masses / masses.to(torch.int64).sum(dim=-1, keepdim=True)


def saguaro(laws: Tensor, fan_out: int, scale: float) -> Tensor:
    """sigma_{F,C}: laws [N, V] with their F + 1 likeliest tokens (lower id first among equals) scaled by C = `scale`.

    The result sums to 1 again. The smaller C, the likelier it is that a refused token is replaced by one of the F
    that are anticipated. A law with no other token than those is left as it is where C = 0. Raises ValueError unless
    fan_out >= 0 and 0 <= scale <= 1.
    """
    if fan_out < 0 or not 0.0 <= scale <= 1.0:
        raise ValueError(f"fan_out must not be negative and scale must be in [0, 1], got {fan_out} and {scale}")
    top = strict_top(laws, fan_out + 1)[1]
    scaled = laws.scatter(-1, top, laws.gather(-1, top) * scale)
    total = scaled.sum(dim=-1, keepdim=True)
    return torch.where(total > 0.0, scaled / total, laws)


def sparse_laws(laws: Tensor, size: int = DEFAULT_LAW_SIZE, *, fan_out: int = 0, scale: float = 1.0) -> list[SparseLaw]:
    """What the draft draws from and ships: the `size` likeliest tokens of each law [N, V], renormalised.

    scale = C < 1 applies `saguaro` with F = fan_out to what is left.
    """
    if size < 1:
        raise ValueError(f"a law holds at least one token, got size {size}")
    top, ids = strict_top(laws, size)
    if scale < 1.0:
        top = saguaro(top / top.sum(dim=-1, keepdim=True), fan_out, scale)
    ids, order = ids.sort(dim=-1)
    weights = top.gather(-1, order).to(torch.float32)
    return [
        SparseLaw(*zip(*((i, w) for i, w in zip(row_ids, row_weights, strict=True) if w > 0.0), strict=True))
        for row_ids, row_weights in zip(ids.tolist(), weights.tolist(), strict=True)
    ]


def packed(laws: Sequence[SparseLaw]) -> tuple[Tensor, Tensor]:
    """Ids (int64) and probabilities (float64), both [N, M] on the CPU; shorter laws end in id 0 with probability 0."""
    width = max((len(law.ids) for law in laws), default=1)
    ids = [(*law.ids, *(0,) * (width - len(law.ids))) for law in laws]
    probabilities = [(*law.probabilities, *(0.0,) * (width - len(law.ids))) for law in laws]
    return (
        torch.tensor(ids, dtype=torch.int64).view(len(laws), width),
        torch.tensor(probabilities, dtype=torch.float64).view(len(laws), width),
    )


def all_words(seeds: Tensor, positions: Tensor, count: int, stream: NoiseStream) -> Tensor:
    """The first `count` noise words of each seed and position: int64 [R, count].

    The same as `philox.uniform_words`, without its search for equal rows: here every row is another position.
    """
    blocks = torch.arange(-(-count // 4), device=seeds.device)[None, :]
    return torch.stack(noise_words(seeds, positions, blocks, stream), dim=-1).flatten(-2)[:, :count]


def race(ids: Tensor, probabilities: Tensor, seeds: Tensor, positions: Tensor, stream: NoiseStream) -> Tensor:
    """One draw per row from probabilities [R, M] (any scale) of ids [R, M]: int64 [R].

    seeds and positions int64 [R]. The draw is a function of law, seed, position and stream; the order of the ids does
    not matter.
    """
    vocab = int(ids.amax()) + 1 if ids.numel() else 0
    if ids.shape[-1] * 4 >= vocab:
        noise = gumbel_of(all_words(seeds, positions, vocab, stream)).gather(-1, ids)
    else:
        noise = gumbel_at(seeds, positions, ids, stream=stream)
    scores = probabilities.log() + noise
    ties = scores == scores.amax(dim=-1, keepdim=True)
    return ids.masked_fill(~ties, torch.iinfo(torch.int64).max).amin(dim=-1)


def draw_from_sparse_laws(laws: Sequence[SparseLaw], seeds: Sequence[int], positions: Sequence[int]) -> list[int]:
    """The proposal token of each law, for unsigned 64-bit seeds and the absolute position of each token."""
    if not len(laws) == len(seeds) == len(positions):
        raise ValueError(f"{len(laws)} laws need as many seeds and positions, got {len(seeds)} and {len(positions)}")
    ids, probabilities = packed(laws)
    patterns = torch.tensor([seed_pattern(seed) for seed in seeds], dtype=torch.int64)
    where = torch.tensor(positions, dtype=torch.int64)
    return [int(token) for token in race(ids, probabilities, patterns, where, NoiseStream.DRAFT).tolist()]


def draw_from_sparse_law(law: SparseLaw, seed: int, position: int) -> int:
    """The proposal token that `law` gives at one position."""
    return draw_from_sparse_laws([law], [seed], [position])[0]
