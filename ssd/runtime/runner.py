"""Runs one step of a model: packs rows into tensors, builds the attention context, returns the logits asked for.

A row is 1..n query tokens of a sequence at consecutive positions: decoding is one token, verification K + 1, a chunk of
prefill any number. All three mix freely in one step.

With FastSteps the device also draws where a draw needs nothing but a temperature, and steps of common sizes run as
CUDA graphs; other steps are packed anew each time.
"""

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import torch

from ssd.layers.attention import AttentionBackend, AttentionContext, BranchContext
from ssd.models.config import ModelConfig
from ssd.models.decoder import CausalLM
from ssd.runtime.device import on_gpu
from ssd.runtime.draws import PlainDraw
from ssd.runtime.fast_steps import FastSteps, Ran, wanted_places
from ssd.runtime.heads import Head, WholeHead
from ssd.runtime.kv_cache import KVCache
from ssd.runtime.rows import BranchItem, Checks, RunRow

__all__ = ["BranchItem", "ModelRunner", "PlainDraw", "RunRow", "Runner", "Stepped"]

Draws = Sequence[PlainDraw | None]


Ids = Sequence[Sequence[int]]


class Stepped:
    """What a step gives for its wanted tokens, until the next step: the device may still be busy with it.

    logits   (numbers of wanted tokens) → [n, V]
    done     whether `ids` would come without a wait
    """

    def __init__(
        self,
        ids: Callable[[], Ids],
        logits: Callable[[Sequence[int]], torch.Tensor],
        done: Callable[[], bool] = lambda: True,
    ) -> None:
        self.logits = logits
        self.done = done
        self._fetch = ids

    @functools.cached_property
    def ids(self) -> Ids:
        """ids[i] of wanted token i, best first, where a draw was asked for: UNDRAWABLE where there are none, anything
        where it was not."""
        return self._fetch()


class Runner(Protocol):
    """What an engine asks of a model; see ModelRunner, which is one in this process."""

    @property
    def draws(self) -> bool: ...

    def run(self, rows: Sequence[RunRow]) -> torch.Tensor: ...

    def run_branches(self, items: Sequence[BranchItem]) -> torch.Tensor: ...

    def step(self, rows: Sequence[RunRow], draws: Draws, count: int = 1) -> Stepped: ...

    def draft(self, rows: Sequence[RunRow], draws: Sequence[PlainDraw], steps: int) -> list[list[int]]: ...

    def grow(self, items: Sequence[BranchItem], draws: Draws) -> Stepped: ...

    def grow_on(
        self, items: Sequence[BranchItem], draws: Sequence[PlainDraw], steps: int
    ) -> list[list[int]] | None: ...


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _on_device(
    method: Callable[Concatenate["ModelRunner", Parameters], Result],
) -> Callable[Concatenate["ModelRunner", Parameters], Result]:
    """Runs a method without gradients, with the runner's GPU as the thread's own: kernels and events go there."""

    @functools.wraps(method)
    def wrapped(self: "ModelRunner", *args: Parameters.args, **named: Parameters.kwargs) -> Result:
        with torch.inference_mode(), on_gpu(self.device):
            return method(self, *args, **named)

    return wrapped


class ModelRunner:
    """One model with one KV cache. Not thread-safe: one step loop owns it."""

    def __init__(
        self,
        model: CausalLM,
        config: ModelConfig,
        kv: KVCache,
        backend: AttentionBackend,
        fast: FastSteps | None = None,
        head: Head | None = None,
    ) -> None:
        """`head`: draws steps that are packed for themselves, also where there are no fast ones. None: only `fast`
        draws."""
        if model.deterministic and not backend.deterministic:
            raise ValueError("a deterministic model needs a deterministic attention backend")
        self.model = model
        self.config = config
        self.kv = kv
        self.backend = backend
        self.device = kv.keys[0].device
        self.fast = fast
        self._draws = fast is not None or head is not None
        self._head = fast.shared.head if fast is not None else head or WholeHead(model, config.vocab_size)
        self._checks = Checks(config, kv.blocks * kv.block_size)

    @property
    def draws(self) -> bool:
        """Whether steps draw on the device: then `step`, `draft` and `grow` are there."""
        return self._draws

    @_on_device
    def run(self, rows: Sequence[RunRow]) -> torch.Tensor:
        """One forward over all rows → logits [sum of row.logits, vocab] in the model's dtype, row after row.

        ValueError for an id outside the vocabulary, a position past the model's limit or outside the row's table.
        """
        self.check_rows(rows)
        wanted = sum(row.logits for row in rows)
        if self.fast is not None and (ran := self.fast.run(rows, [None] * wanted)) is not None:
            return ran.logits(range(wanted))
        return self._head.whole(self._run(rows))

    @_on_device
    def run_branches(self, items: Sequence[BranchItem]) -> torch.Tensor:
        """One token of each branch → logits [T, vocab] in the model's dtype.

        The branches' earlier tokens must have been run before, each in its own suffix slots.
        """
        self.check_branches(items)
        trunks = {id(item.trunk): row for row, item in reversed(list(enumerate(items)))}
        # Backends rely on it that the branches of a trunk lie together.
        order = sorted(range(len(items)), key=lambda i: trunks[id(items[i].trunk)])
        together = [items[i] for i in order]
        ran = None if self.fast is None else self.fast.grow(together, [None] * len(items))
        logits = self._head.whole(self._run_branches(together)) if ran is None else ran.logits(range(len(items)))
        return logits if order == list(range(len(items))) else logits[sorted(range(len(items)), key=order.__getitem__)]

    # With draws on the device

    @_on_device
    def step(self, rows: Sequence[RunRow], draws: Draws, count: int = 1) -> Stepped:
        """`run` with the `count` best ids of each wanted token that has a draw."""
        self._check_draws()
        self.check_rows(rows)
        ran = None if self.fast is None else self.fast.run(rows, draws, count)
        return self._stepped(ran, draws) if ran is not None else self._drawn(self._run(rows), draws, count)

    @_on_device
    def draft(self, rows: Sequence[RunRow], draws: Sequence[PlainDraw], steps: int) -> list[list[int]]:
        """`steps` tokens behind each row (with logits=1), one drawn after the other without the host where there is
        such a size: ids [steps][rows]. A row ends with its first UNDRAWABLE; what follows is without meaning. The KV
        of all but the last token is written, for which the tables have slots."""
        self._check_draws()
        self.check_rows(rows)
        if self.fast is not None and (found := self.fast.draft(rows, draws, steps)) is not None:
            return found.tolist()
        drawn: list[list[int]] = []
        for _ in range(steps):
            ids = [one[0] for one in self.step(rows, draws).ids]
            rows = [
                RunRow((max(0, token),), row.start + len(row.ids), row.table)
                for row, token in zip(rows, ids, strict=True)
            ]
            draws = [PlainDraw(one.seed, one.position + 1, one.temperature) for one in draws]
            drawn.append(ids)
        return drawn

    @_on_device
    def grow(self, items: Sequence[BranchItem], draws: Draws) -> Stepped:
        """`run_branches` with the next id of each branch that has a draw."""
        self._check_draws()
        self.check_branches(items)
        ran = None if self.fast is None else self.fast.grow(items, draws)
        return self._stepped(ran, draws) if ran is not None else self._drawn(self._run_branches(items), draws, 1)

    @_on_device
    def grow_on(self, items: Sequence[BranchItem], draws: Sequence[PlainDraw], steps: int) -> list[list[int]] | None:
        """`steps` tokens more for each branch, one drawn after the other without the host: ids [steps][branches], or
        None where there is no such size. A branch whose slots end before is grown on for nothing."""
        self._check_draws()
        self.check_branches(items)
        ran = None if self.fast is None else self.fast.grow(items, draws, steps)
        return None if ran is None else ran.ids(steps)[:, :, 0].tolist()

    @_on_device
    def prepare(self) -> None:
        """Prepares the steps that serving will meet, where there are such."""
        if self.fast is not None:
            self.fast.prepare()

    def _check_draws(self) -> None:
        if not self.draws:
            raise RuntimeError("this runner does not draw")

    def _stepped(self, ran: Ran, draws: Draws) -> Stepped:
        logits = functools.partial(self._logits_of, ran)
        if all(draw is None for draw in draws):
            return Stepped(lambda: [()] * len(draws), logits)
        ran.send()
        return Stepped(lambda: ran.received().tolist(), logits, lambda: ran.arrived)

    @_on_device
    def _logits_of(self, ran: Ran, wanted: Sequence[int]) -> torch.Tensor:
        return ran.logits(wanted)

    @_on_device
    def _whole_of(self, scores: torch.Tensor, wanted: Sequence[int]) -> torch.Tensor:
        return self._head.whole(scores[list(wanted)])

    def _drawn(self, scores: torch.Tensor, draws: Draws, count: int) -> Stepped:
        """Draws from the head's scores [wanted, …] of a step that was packed for itself."""
        ids: list[Sequence[int]] = [()] * len(draws)
        asked = [i for i, draw in enumerate(draws) if draw is not None]
        if asked:
            chosen = [draw for draw in draws if draw is not None]
            part = scores if len(asked) == len(scores) else scores[asked]
            best = self._head.ranked(
                part,
                self._tensor([draw.seed for draw in chosen]),
                self._tensor([draw.position for draw in chosen]),
                torch.tensor([draw.temperature for draw in chosen], dtype=torch.float64, device=self.device),
                count,
            )
            for i, found in zip(asked, best.tolist(), strict=True):
                ids[i] = found
        return Stepped(lambda: ids, functools.partial(self._whole_of, scores))

    # Steps packed for themselves

    def _run(self, rows: Sequence[RunRow]) -> torch.Tensor:
        ends = [row.start + len(row.ids) for row in rows]
        counts = [len(row.ids) for row in rows]
        starts = [0]
        for count in counts:
            starts.append(starts[-1] + count)
        ctx = self._context(
            positions=[p for row, end in zip(rows, ends, strict=True) for p in range(row.start, end)],
            slots=[s for row, end in zip(rows, ends, strict=True) for s in row.table.slots(row.start, end)],
            tables=[row.table.blocks[: -(-end // self.kv.block_size)] for row, end in zip(rows, ends, strict=True)],
            query_starts=starts,
            key_lens=ends,
        )
        hidden = self.model(self._tensor([token for row in rows for token in row.ids]), ctx)
        wanted = wanted_places(rows)
        if not wanted:
            return hidden.new_empty((0, self._head.width))
        if len(wanted) < len(hidden):
            hidden = hidden.index_select(0, self._tensor(wanted))
        return self._head.scores(hidden)

    def _run_branches(self, items: Sequence[BranchItem]) -> torch.Tensor:
        trunks = list({id(item.trunk): item.trunk for item in items}.values())
        row_of = {id(trunk): row for row, trunk in enumerate(trunks)}
        depth = max(len(item.suffix_slots) for item in items)
        ctx = self._context(
            positions=[item.position for item in items],
            slots=[item.suffix_slots[-1] for item in items],
            tables=[trunk.blocks for trunk in trunks],
            query_starts=list(range(len(items) + 1)),
            key_lens=[item.position + 1 for item in items],
        )
        ctx.branches = BranchContext(
            trunk_row=self._tensor([row_of[id(item.trunk)] for item in items]),
            prefix_len=self._tensor([item.prefix_len for item in items]),
            suffix_slots=self._tensor(
                [[*item.suffix_slots, *[-1] * (depth - len(item.suffix_slots))] for item in items]
            ),
            suffix_len=self._tensor([len(item.suffix_slots) for item in items]),
        )
        return self._head.scores(self.model(self._tensor([item.token for item in items]), ctx))

    def _context(
        self,
        positions: list[int],
        slots: list[int],
        tables: list[list[int]],
        query_starts: list[int],
        key_lens: list[int],
    ) -> AttentionContext:
        width = max(1, max(len(table) for table in tables))
        return AttentionContext(
            positions=self._tensor(positions),
            slots=self._tensor(slots),
            query_starts=self._tensor(query_starts),
            context_lens=self._tensor(key_lens),
            block_tables=self._tensor([table + [0] * (width - len(table)) for table in tables]),
            block_size=self.kv.block_size,
            query_lens=[stop - start for start, stop in pairwise(query_starts)],
            key_lens=key_lens,
            backend=self.backend,
            keys=self.kv.keys,
            values=self.kv.values,
        )

    def _tensor(self, values: list[int] | list[list[int]]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def check_rows(self, rows: Sequence[RunRow]) -> None:
        """ValueError for rows that cannot be run."""
        if not rows:
            raise ValueError("a step needs at least one row")
        for row in rows:
            self._checks.row(row)

    def check_branches(self, items: Sequence[BranchItem]) -> None:
        """ValueError for branches that cannot be run."""
        if not items:
            raise ValueError("a step needs at least one branch")
        for item in items:
            self._checks.branch(item)
