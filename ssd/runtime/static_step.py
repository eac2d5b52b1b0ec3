"""Steps of one size whose tensors keep their place: rows of sequences, and the newest tokens of branches.

A step computes logits, draws, and notes the ids; `advance` then makes the drawn ids the next step's tokens. Both wait
for nothing, so that several tokens come behind one another without the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ssd.layers.attention import AttentionBackend, AttentionContext, BranchContext
from ssd.models.decoder import CausalLM
from ssd.runtime.draws import PlainDraw
from ssd.runtime.graphs import Executor
from ssd.runtime.heads import Head
from ssd.runtime.kv_cache import KVCache
from ssd.runtime.rows import BranchItem, RunRow
from ssd.runtime.static_inputs import Field, StaticInputs, StaticResults
from ssd.runtime.step_sizes import BranchSize, StepSize

_NOWHERE = -1


@dataclass(frozen=True)
class Shared:
    """What all steps of one runner share. `scores` [most tokens of a step, …] holds the head's of the last step;
    `chain` steps at most follow one another."""

    model: CausalLM
    kv: KVCache
    backend: AttentionBackend
    executor: Executor
    scores: torch.Tensor
    head: Head
    chain: int
    max_position: int

    @property
    def device(self) -> torch.device:
        return self.scores.device


class StaticStep:
    """What both kinds have in common. Its inputs are filled from field to field before `run`."""

    def __init__(self, shared: Shared, tokens: int, count: int, fields: dict[str, Field]) -> None:
        drawing = {
            "ids": Field((tokens,)),
            "positions": Field((tokens,)),
            "slots": Field((tokens,), blank=_NOWHERE),
            "seeds": Field((tokens,)),
            "draw_positions": Field((tokens,)),
            "temperatures": Field((tokens,), real=True),
            "step": Field((1,)),
        }
        self.shared = shared
        self.inputs = StaticInputs(drawing | fields, shared.device)
        self.results = StaticResults((shared.chain, tokens, count), shared.device)
        self.tokens = tokens
        self.count = count
        self.ctx = self.context(self.inputs.device)
        self.inputs.upload()
        self._compute = shared.executor.prepare(self.compute)
        self._advance = shared.executor.prepare(self.advance) if shared.chain > 1 and self.advances else None

    @property
    def advances(self) -> bool:
        """Whether another step of this size can follow from what was drawn."""
        raise NotImplementedError

    def context(self, there: dict[str, torch.Tensor]) -> AttentionContext:
        """The attention's view of the inputs."""
        raise NotImplementedError

    def run(self, steps: int = 1) -> None:
        """Runs so many steps behind one another from the inputs that are on the device; at most `chain`."""
        self._compute()
        for _ in range(steps - 1):
            if self._advance is None:
                raise ValueError("steps of this size do not follow one another")
            self._advance()
            self._compute()

    def fetch(self, steps: int = 1) -> np.ndarray[Any, Any]:
        """Ids [steps, tokens, count] of the last run, best first; good until the next one."""
        return self.results.fetch(steps)

    def put_draws(self, places: Sequence[int], draws: Sequence[PlainDraw | None]) -> None:
        """draws[i] is made from the logits of token places[i]."""
        here = self.inputs.host
        for place, draw in zip(places, draws, strict=True):
            if draw is not None:
                here["seeds"][place] = draw.seed
                here["draw_positions"][place] = draw.position
                here["temperatures"][place] = draw.temperature

    def compute(self) -> None:
        """The device's work of one step."""
        there, shared = self.inputs.device, self.shared
        scores = shared.head.scores(shared.model(there["ids"], self.ctx))
        shared.scores[: self.tokens].copy_(scores)
        best = shared.head.ranked(scores, there["seeds"], there["draw_positions"], there["temperatures"], self.count)
        self.results.device.index_copy_(0, there["step"], best[None])

    def advance(self) -> None:
        """The device's work between two steps: each token's draw is the next token of its row or branch."""
        there = self.inputs.device
        drawn = self.results.device.index_select(0, there["step"])[0, :, 0]
        # What cannot be drawn ends the row on the host; until then any token will do.
        there["ids"].copy_(drawn.clamp(min=0))
        there["positions"].copy_((there["positions"] + 1).clamp(max=self.shared.max_position - 1))
        there["draw_positions"].add_(1)
        there["step"].add_(1)

    def _context(self, tables: torch.Tensor, starts: torch.Tensor, lens: torch.Tensor) -> AttentionContext:
        there, kv = self.inputs.device, self.shared.kv
        return AttentionContext(
            positions=there["positions"],
            slots=there["slots"],
            query_starts=starts,
            context_lens=lens,
            block_tables=tables,
            block_size=kv.block_size,
            query_lens=(),
            key_lens=(),
            backend=self.shared.backend,
            keys=kv.keys,
            values=kv.values,
            most_queries=1,
        )


class RowStep(StaticStep):
    """Rows of sequences, packed one behind the other; the places left over belong to no row and write nowhere."""

    def __init__(self, shared: Shared, size: StepSize) -> None:
        self.size = size
        fields = {
            "query_starts": Field((size.rows + 1,)),
            "context_lens": Field((size.rows,)),
            "tables": Field((size.rows, size.width)),
            "source": Field((size.tokens,)),
        }
        super().__init__(shared, size.tokens, size.count, fields)

    @property
    def advances(self) -> bool:
        return self.size.queries == 1

    def context(self, there: dict[str, torch.Tensor]) -> AttentionContext:
        ctx = self._context(there["tables"], there["query_starts"], there["context_lens"])
        ctx.most_queries = self.size.queries
        return ctx

    def fill(self, rows: Sequence[RunRow]) -> None:
        """The rows on the host's side; draws are put separately."""
        self.inputs.clear()
        here, place = self.inputs.host, 0
        for index, row in enumerate(rows):
            count = len(row.ids)
            end = row.start + count
            here["ids"][place : place + count] = row.ids
            here["positions"][place : place + count] = np.arange(row.start, end)
            here["slots"][place : place + count] = row.table.slots(row.start, end)
            here["query_starts"][index] = place
            here["context_lens"][index] = end
            blocks = row.table.blocks[: self.size.width]
            here["tables"][index, : len(blocks)] = blocks
            place += count
        here["query_starts"][len(rows) :] = place

    def follow(self, before: "RowStep") -> None:
        """This step's tokens are what `before` has just drawn at the places that were put as this one's source."""
        there = self.inputs.device
        torch.index_select(before.results.device[0, :, 0], 0, there["source"], out=there["ids"])
        there["ids"].clamp_(min=0)

    def put_source(self, places: Sequence[int]) -> None:
        """Where the step before draws the tokens of this one; goes with the inputs."""
        self.inputs.host["source"][: len(places)] = places

    def advance(self) -> None:
        super().advance()
        there, size = self.inputs.device, self.shared.kv.block_size
        positions = there["positions"]
        held = (positions // size).clamp(max=self.size.width - 1)
        blocks = there["tables"].gather(1, held[:, None])[:, 0]
        there["slots"].copy_(torch.where(there["slots"] < 0, _NOWHERE, blocks * size + positions % size))
        lens = there["context_lens"]
        lens.copy_(torch.where(lens > 0, positions + 1, 0))


class BranchStep(StaticStep):
    """The newest token of each branch, trunk by trunk; the places left over see nothing and write nowhere."""

    def __init__(self, shared: Shared, size: BranchSize) -> None:
        self.size = size
        fields = {
            "tables": Field((size.trunks, size.width)),
            # Branches of one trunk lie together, in the trunks' order, and the places left over are the last.
            "trunk_row": Field((size.tokens,), blank=size.trunks - 1),
            "prefix_len": Field((size.tokens,)),
            "suffix_slots": Field((size.tokens, size.depth), blank=_NOWHERE),
            "suffix_len": Field((size.tokens,)),
            "slots_held": Field((size.tokens,)),
        }
        super().__init__(shared, size.tokens, 1, fields)

    @property
    def advances(self) -> bool:
        return True

    def context(self, there: dict[str, torch.Tensor]) -> AttentionContext:
        ctx = self._context(there["tables"], there["trunk_row"], there["prefix_len"])
        names = ("trunk_row", "prefix_len", "suffix_slots", "suffix_len")
        ctx.branches = BranchContext(**{name: there[name] for name in names})
        return ctx

    def fill(self, items: Sequence[BranchItem]) -> None:
        """The branches, those of one trunk together, on the host's side; draws are put separately."""
        self.inputs.clear()
        here = self.inputs.host
        rows: dict[int, int] = {}
        for place, item in enumerate(items):
            row = rows.get(id(item.trunk))
            if row is None:
                row = rows[id(item.trunk)] = len(rows)
                blocks = item.trunk.blocks[: self.size.width]
                here["tables"][row, : len(blocks)] = blocks
            own = len(item.suffix_slots)
            held = own + len(item.later_slots)
            here["trunk_row"][place] = row
            here["suffix_slots"][place, :own] = item.suffix_slots
            here["suffix_slots"][place, own:held] = item.later_slots
            here["slots"][place] = item.suffix_slots[-1]
            here["suffix_len"][place] = own
            here["slots_held"][place] = held
        count = len(items)
        here["ids"][:count] = [item.token for item in items]
        here["positions"][:count] = [item.position for item in items]
        here["prefix_len"][:count] = [item.prefix_len for item in items]

    def advance(self) -> None:
        super().advance()
        there = self.inputs.device
        grown, held = there["suffix_len"] + 1, there["slots_held"]
        # A branch without a slot for its next token is complete: it goes on for nobody, and writes nowhere.
        there["suffix_len"].copy_(torch.minimum(grown, held))
        newest = (there["suffix_len"] - 1).clamp(min=0)
        slots = there["suffix_slots"].gather(1, newest[:, None])[:, 0]
        there["slots"].copy_(torch.where(grown <= held, slots, _NOWHERE))
