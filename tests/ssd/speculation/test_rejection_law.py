"""Whatever was proposed, from whatever law, the tokens of rejection verification follow the target's law.

300 000 sequences, told apart by their seeds, go through one block together. Distance is total variation; the noise
floor is what samples of the true law itself show in the mean.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from ssd.speculation.params import SamplingParams
from ssd.speculation.philox import NoiseStream
from ssd.speculation.rejection import Blocks, residual, settle
from ssd.speculation.sampling import DrawRow, TokenHistory
from ssd.speculation.sparse_law import SparseLaw, filtered_laws, packed, point_mass, race, sparse_laws
from tests.ssd.speculation.laws import filtered_law

DRAWS = 300_000
K = 3

FILTERS = {
    "none": {},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.8},
    "all": {"top_k": 5, "top_p": 0.9, "min_p": 0.05},
}


@dataclass(frozen=True)
class Cell:
    """One setting. `refused` is the position that the draft is made to fail at; K = nowhere."""

    vocab: int
    target_temperature: float
    draft_temperature: float
    filters: str
    kind: str
    scale: float
    refused: int

    def __str__(self) -> str:
        return "-".join(str(getattr(self, name)) for name in self.__dataclass_fields__)


VOCABULARIES = (4, 8, 16)
TARGET_TEMPERATURES = (0.7, 1.0, 0.0, 1.3)
DRAFT_TEMPERATURES = (1.0, 0.5, 1.5)
KINDS = [("drawn", 1.0), ("drawn", 0.5), ("drawn", 0.1), ("ngram", 1.0), ("none", 1.0)]


def small_grid() -> list[Cell]:
    """Every value of every axis several times, with every kind at every forced position."""
    axes = itertools.cycle(itertools.product(TARGET_TEMPERATURES, DRAFT_TEMPERATURES, FILTERS, VOCABULARIES))
    cells = []
    for (kind, scale), refused in itertools.product(KINDS, range(K + 1)):
        # 19 is prime to the 144 combinations, so that the walk through them does not repeat.
        target, draft, filters, vocab = next(itertools.islice(axes, 18, None))
        cells.append(Cell(vocab, target, draft, filters, kind, scale, refused if kind != "none" else 0))
    return list(dict.fromkeys(cells))


def full_grid() -> list[Cell]:
    product = itertools.product(
        (4, 16), TARGET_TEMPERATURES, (0.0, 0.5, 1.0, 1.5), FILTERS, [*KINDS, ("drawn", 0.0)], range(K + 1)
    )
    return [
        Cell(vocab, target, draft, filters, kind, scale, refused)
        for vocab, target, draft, filters, (kind, scale), refused in product
        if kind != "none" or refused == 0
    ]


def laws_of(logits: Tensor, temperature: float, filters: str) -> Tensor:
    """The laws of some rows of logits, by the plain reference where there is one."""
    params = SamplingParams(temperature=temperature, **FILTERS[filters])
    if temperature > 0.0:
        return torch.tensor([filtered_law(row, params) for row in logits.tolist()], dtype=torch.float64)
    return filtered_laws(logits, [DrawRow(params, j, TokenHistory(())) for j in range(len(logits))])


def noise_floor(law: Tensor, draws: int) -> float:
    return 0.5 * float((2.0 * law * (1.0 - law) / (math.pi * draws)).sqrt().sum())


def distance(tokens: Tensor, law: Tensor) -> float:
    return 0.5 * float((torch.bincount(tokens, minlength=len(law)) / len(tokens) - law).abs().sum())


def check(tokens: Tensor, law: Tensor) -> None:
    assert distance(tokens, law) < max(0.01, 5 * noise_floor(law, len(tokens)))


def new_seeds(start: int, draws: int = DRAWS) -> Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (draws,), generator=torch.Generator().manual_seed(start))


class Run:
    """One cell: the laws, what was proposed, and what came out."""

    def __init__(self, cell: Cell, draws: int = DRAWS, *, claimed_temperature: float | None = None) -> None:
        generator = torch.Generator().manual_seed(100 * cell.vocab + cell.refused)
        logits = 1.3 * torch.randn(K + 1, cell.vocab, generator=generator, dtype=torch.float64)
        self.p = laws_of(logits, cell.target_temperature, cell.filters)
        # Before the position to be refused the draft knows the target's law, there it believes the contrary.
        draft = logits + torch.randn(K + 1, cell.vocab, generator=generator, dtype=torch.float64)
        draft[: cell.refused] = logits[: cell.refused]
        if cell.refused < K:
            draft[cell.refused] = -logits[cell.refused]
        self.q = self._draft_laws(cell, draft, cell.draft_temperature)
        self.q[: cell.refused] = sparse_laws(self.p[: cell.refused], cell.vocab)
        if cell.kind == "ngram":
            self.p[: cell.refused] = torch.nn.functional.one_hot(draft[: cell.refused].argmax(-1), cell.vocab).double()
        seeds = new_seeds(7, draws)
        positions = torch.full((draws,), 100)
        width = 0 if cell.kind == "none" else K
        if cell.kind == "ngram":
            ids = draft[:K].argmax(dim=-1).expand(draws, K)
            self.q = [point_mass(token) for token in ids[0].tolist()]
        else:
            ids = torch.stack([self.drawn(self.q[j], seeds, positions + j) for j in range(width)] or [positions], -1)
            ids = ids[:, :width]
        claimed = self.q
        if claimed_temperature is not None:
            claimed = self._draft_laws(cell, draft, claimed_temperature)
        law_ids, weights = packed(claimed[:width])
        blocks = Blocks(
            starts=torch.zeros(draws, dtype=torch.int64),
            ids=ids,
            law_ids=law_ids.expand(draws, -1, -1),
            probabilities=weights.expand(draws, -1, -1),
            seeds=seeds,
            positions=positions,
        )
        self.accepted, self.last = settle(self.p, blocks)
        self.emitted = torch.cat([ids, self.last[:, None]], dim=-1).scatter(
            -1, self.accepted[:, None], self.last[:, None]
        )

    @staticmethod
    def _draft_laws(cell: Cell, draft: Tensor, temperature: float) -> list[SparseLaw]:
        laws = laws_of(draft, temperature, cell.filters)
        return sparse_laws(laws, max(3, cell.vocab - 2), fan_out=1, scale=cell.scale)[:K]

    @staticmethod
    def drawn(law: SparseLaw, seeds: Tensor, positions: Tensor) -> Tensor:
        ids, weights = packed([law])
        return race(ids.expand(len(seeds), -1), weights.expand(len(seeds), -1), seeds, positions, NoiseStream.DRAFT)

    def check(self, cell: Cell) -> None:
        """Every emitted token follows p at its position, and every refused one's successor the residual."""
        for j in range(K + 1):
            reached = self.accepted >= j
            if int(reached.sum()) >= 0.2 * len(reached):
                check(self.emitted[reached, j], self.p[j])
            refused = self.accepted == j
            if j < K and cell.kind != "none" and int(refused.sum()) >= 0.2 * len(refused):
                ids, weights = packed([self.q[j]])
                left = residual(self.p[j : j + 1], ids, weights)[0]
                check(self.last[refused], left / left.sum())
        if cell.kind != "none" and cell.refused < K:
            assert int((self.accepted == cell.refused).sum()) >= 0.2 * len(self.accepted)
        certain = self.accepted >= (0 if cell.kind == "none" else cell.refused)
        assert int(certain.sum()) >= 0.999 * len(certain)


@pytest.mark.parametrize("cell", small_grid(), ids=str)
def test_emitted_tokens_follow_the_targets_law(cell):
    Run(cell).check(cell)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("cell", full_grid(), ids=str)
def test_emitted_tokens_follow_the_targets_law_everywhere(cell):
    Run(cell).check(cell)


WRONG = Cell(8, 1.0, 1.0, "none", "drawn", 1.0, 0)


def test_a_wrong_q_is_noticed():
    Run(WRONG).check(WRONG)
    with pytest.raises(AssertionError):
        Run(WRONG, claimed_temperature=1.4).check(WRONG)


def test_accepting_the_likeliest_token_outright_is_noticed():
    # The shortcut "accept what is the argmax, else draw from p": p = .4 for the argmax, drawn with q = .1.
    p, q = torch.tensor([0.4, 0.3, 0.3]), torch.tensor([0.1, 0.6, 0.3])
    proposed, fallback = torch.multinomial(torch.stack([q, p]), DRAWS, replacement=True)
    with pytest.raises(AssertionError):
        check(torch.where(proposed == 0, proposed, fallback), p.double())


def test_whole_texts_follow_the_targets_law_over_many_rounds():
    # Laws depend on the token before. Rounds of K = 2 go on until three tokens are there, so positions that one round
    # abandons are proposed again, with the same noise, in the next.
    vocab, length, width, draws = 3, 3, 2, 200_000
    generator = torch.Generator().manual_seed(3)
    chain = torch.randn(vocab, vocab, generator=generator, dtype=torch.float64).softmax(dim=-1)
    draft = sparse_laws(torch.randn(vocab, vocab, generator=generator, dtype=torch.float64).softmax(dim=-1))
    draft_ids, draft_weights = packed(draft)
    seeds = new_seeds(11, draws)
    text = torch.zeros(draws, 1 + length + width + 1, dtype=torch.int64)
    done = torch.ones(draws, dtype=torch.int64)
    every = torch.arange(draws)
    while int(done.min()) <= length:
        before = [text[every, done - 1]]
        for j in range(width):
            law = before[-1]
            before.append(race(draft_ids[law], draft_weights[law], seeds, done + j, NoiseStream.DRAFT))
        context = torch.stack(before, dim=-1)
        blocks = Blocks(
            starts=every * (width + 1),
            ids=context[:, 1:],
            law_ids=draft_ids[context[:, :-1]],
            probabilities=draft_weights[context[:, :-1]],
            seeds=seeds,
            positions=done,
        )
        accepted, last = settle(chain[context.reshape(-1)], blocks)
        going = done <= length
        for j in range(width + 1):
            token = torch.where(accepted == j, last, context[:, min(j + 1, width)])
            where = going & (accepted >= j)
            text[every[where], done[where] + j] = token[where]
        done = torch.where(going, done + accepted + 1, done)
    joint = torch.einsum("a,ab,bc->abc", chain[0], chain, chain).reshape(-1)
    check(text[:, 1] * vocab**2 + text[:, 2] * vocab + text[:, 3], joint)
