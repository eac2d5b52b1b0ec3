"""Sizes that steps are rounded up to, so that a few dozen CUDA graphs serve every step of a service.

Tokens are packed row behind row whatever their number in each: only the sum is rounded up, and rows without tokens cost
next to nothing. So rows are rounded up much more coarsely than tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_ONE_ROW = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_DECODING = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_MIXED = (8, 16, 32, 64, 96, 128, 192, 256)
_MIXED_ROWS = (4, 16, 64, 256)
_QUERIES = (8, 32, 128)
_BRANCHES = (4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_TRUNKS = (1, 4, 16, 64)
_DEPTHS = (4, 8, 16, 32, 64, 128)
_FIRST_WIDTH, _WIDTH_GROWTH = 2048, 4
"""Tokens that the narrowest block table holds, and how much each wider one holds than the one before."""


@dataclass(frozen=True)
class StepSize:
    """Rows of together `tokens` tokens, at most `queries` of them in one; block tables [rows, width]; `count` ids are
    ranked for each token."""

    rows: int
    tokens: int
    queries: int
    width: int
    count: int = 1


@dataclass(frozen=True)
class BranchSize:
    """`tokens` branches of `trunks` trunks with block tables of `width` and at most `depth` slots of their own."""

    trunks: int
    tokens: int
    width: int
    depth: int


@dataclass(frozen=True)
class Demand:
    """What a service may ask of a step.

    queries      most tokens of a row that decodes or verifies
    sequences    most rows
    branches     most branches of one table; 0 = none are grown
    depth        most slots of a branch
    candidates   ids ranked for each token where more than a draw is wanted; 1 = never
    chain        most tokens drawn behind one another without the host
    vocab        ids that may be drawn; 0 = all that there are logits for
    """

    queries: int = 17
    sequences: int = 64
    branches: int = 0
    depth: int = 16
    candidates: int = 1
    chain: int = 1
    vocab: int = 0


@dataclass(frozen=True)
class StepSizes:
    """The sizes for one service. `widths`: of block tables, in blocks; `most_tokens`: no size has more, and steps with
    more have none."""

    demand: Demand
    widths: tuple[int, ...]
    most_tokens: int

    @classmethod
    def make(cls, demand: Demand, *, context: int, block_size: int, token_budget: int) -> "StepSizes":
        """context: longest sequence, tokens."""
        widest = -(-(context + demand.queries) // block_size)
        widths, tokens = [], _FIRST_WIDTH
        while 2 * (width := -(-tokens // block_size)) <= widest:
            widths.append(width)
            tokens *= _WIDTH_GROWTH
        most = min(max(token_budget, demand.queries, demand.branches), _MIXED[-1])
        # Of the sizes that all kinds of steps have: then none is rounded up beyond it.
        return cls(demand, (*widths, widest), next(size for size in _MIXED if size >= most))

    def of_step(self, rows: int, tokens: int, queries: int, width: int, count: int = 1) -> StepSize | None:
        """For `rows` rows of at most `queries` and together `tokens` tokens; None where such a step is not repeated
        often enough."""
        blocks = _fitting(width, self.widths)
        if blocks is None or tokens > self.most_tokens:
            return None
        if rows == 1:
            size = _fitting(tokens, self._one_row)
            return None if size is None else StepSize(1, size, size, blocks, count)
        if queries == 1:
            size = _fitting(tokens, _DECODING)
            return None if size is None else StepSize(size, size, 1, blocks, count)
        most, size, places = _fitting(queries, self._queries), _fitting(tokens, _MIXED), _fitting(rows, _MIXED_ROWS)
        if most is None or size is None or places is None:
            return None
        return StepSize(places, size, most, blocks, count)

    def of_branches(self, trunks: int, tokens: int, width: int, depth: int) -> BranchSize | None:
        """For `tokens` branches with at most `depth` slots each; None where there is no such size."""
        found = (
            _fitting(trunks, _TRUNKS),
            _fitting(tokens, _BRANCHES),
            _fitting(width, self.widths),
            _fitting(depth, _DEPTHS),
        )
        places, size, blocks, slots = found
        if tokens > self.most_tokens or places is None or size is None or blocks is None or slots is None:
            return None
        return BranchSize(places, size, blocks, slots)

    def steps(self) -> Iterator[StepSize]:
        """Every size that the demand can lead to, narrow block tables and few tokens first."""
        seen = set()
        for width in self.widths:
            for rows, tokens, queries in self._shapes():
                size = self.of_step(rows, tokens, queries, width)
                if size is not None and size not in seen:
                    seen.add(size)
                    yield size
                    if self.demand.candidates > 1:
                        yield StepSize(size.rows, size.tokens, size.queries, size.width, self.demand.candidates)

    def branches(self) -> Iterator[BranchSize]:
        """Sizes of one sequence's tables; tables that grow together come as they come."""
        if not self.demand.branches:
            return
        for width in self.widths:
            for depth in _up_to(self.demand.depth, _DEPTHS):
                for tokens in _up_to(self.demand.branches, _BRANCHES):
                    yield BranchSize(_TRUNKS[0], tokens, width, depth)

    def _shapes(self) -> Iterator[tuple[int, int, int]]:
        most_rows = self.demand.sequences
        yield from ((1, tokens, tokens) for tokens in self._one_row)
        yield from ((rows, rows, 1) for rows in _DECODING if rows > 1 and _before(rows, _DECODING) < most_rows)
        for queries in self._queries:
            for rows in _MIXED_ROWS:
                for tokens in _MIXED:
                    fewest = _before(rows, _MIXED_ROWS) + 1
                    if fewest <= most_rows and fewest < tokens <= rows * queries:
                        yield max(2, min(rows, most_rows)), tokens, queries

    @property
    def _one_row(self) -> Sequence[int]:
        return _up_to(self.demand.queries, _ONE_ROW)

    @property
    def _queries(self) -> Sequence[int]:
        return _up_to(self.demand.queries, _QUERIES)


def _fitting(number: int, sizes: Sequence[int]) -> int | None:
    """The smallest size that is not below `number`."""
    return next((size for size in sizes if size >= number), None)


def _up_to(number: int, sizes: Sequence[int]) -> Sequence[int]:
    """The sizes up to the one that `number` fits into."""
    return [size for i, size in enumerate(sizes) if i == 0 or sizes[i - 1] < number]


def _before(size: int, sizes: Sequence[int]) -> int:
    """The next smaller size; 0 before the first."""
    place = sizes.index(size)
    return sizes[place - 1] if place else 0
