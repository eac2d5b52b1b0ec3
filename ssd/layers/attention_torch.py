"""Reference attention in plain torch, for the CPU and for any GPU.

Rows of similar size become one group with one set of calls per layer. A group gathers its keys from the paged cache
into [B, L, Hkv, d], folds the query heads that share a key head into the query length, and masks what a query must not
see. All indices and masks are made once a step.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.nn import functional

from ssd.layers.attention import AttentionContext, BranchContext


@dataclass(frozen=True)
class Group:
    """B rows of Q queries over L keys.

    queries [B * Q] tokens of the step (a short row repeats its last) · keys [B * L] slots (a short row repeats its
    first) · mask [B, 1, Q * heads per key head, L] added to the scores, None where every query sees every key.
    """

    rows: int
    queries: torch.Tensor
    keys: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True)
class Plan:
    """What one step's layers share. `tokens`, `slots`: the tokens whose KV is written, and where; tokens None = all.
    `order`: for each token its place in the groups' joined outputs, None where they are in order already."""

    groups: list[Group]
    tokens: torch.Tensor | None
    slots: torch.Tensor
    order: torch.Tensor | None


class TorchAttention:
    """AttentionBackend in plain torch. `deterministic` gives every query token a call of its own, whose shape depends
    on nothing but the token's position, so that its result does not depend on what else is in the step."""

    def __init__(self, *, deterministic: bool = False) -> None:
        self.deterministic = deterministic

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache_k: torch.Tensor,
        cache_v: torch.Tensor,
        ctx: AttentionContext,
    ) -> torch.Tensor:
        if ctx.plan is None:
            ctx.plan = self.plan(ctx, q.shape[1] // k.shape[1], q.dtype)
        plan: Plan = ctx.plan
        cache_k.index_copy_(0, plan.slots, k if plan.tokens is None else k[plan.tokens])
        cache_v.index_copy_(0, plan.slots, v if plan.tokens is None else v[plan.tokens])
        outputs = [attend_group(q, cache_k, cache_v, group) for group in plan.groups]
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return joined if plan.order is None else joined.index_select(0, plan.order)

    def plan(self, ctx: AttentionContext, fold: int, dtype: torch.dtype) -> Plan:
        """Indices and masks of one step; `fold` = query heads per key head, `dtype` that of the scores."""
        device = ctx.slots.device
        if ctx.branches is not None:
            rows = branch_rows(ctx, ctx.branches, apart=self.deterministic)
        else:
            rows = sequence_rows(ctx, apart=self.deterministic)
        batches = [[row] for row in rows] if self.deterministic else alike(rows)
        groups = [make_group(batch, fold, dtype, device) for batch in batches]
        slots = ctx.slots.cpu()
        written = (slots >= 0).nonzero().flatten()
        whole = len(written) == len(slots)
        joined = torch.cat([group.queries for group in groups]).cpu()
        order = torch.empty(len(slots), dtype=torch.int64)
        order[joined] = torch.arange(len(joined))
        in_order = len(joined) == len(slots) and bool((order == torch.arange(len(order))).all())
        return Plan(
            groups=groups,
            tokens=None if whole else written.to(device),
            slots=slots[written].to(device),
            order=None if in_order else order.to(device),
        )


@dataclass(frozen=True)
class Row:
    """Queries [Q] (tokens of the step), keys [L] (slots) and what each query may see: visible [Q, L], None = all. On
    the CPU."""

    queries: torch.Tensor
    keys: torch.Tensor
    visible: torch.Tensor | None


def attend_group(q: torch.Tensor, cache_k: torch.Tensor, cache_v: torch.Tensor, group: Group) -> torch.Tensor:
    """Attention of one group: [B * Q, Hq, d] in the order of group.queries."""
    rows, (_, heads, dim), kv_heads = group.rows, q.shape, cache_k.shape[1]
    fold = heads // kv_heads
    queries = q.index_select(0, group.queries).view(rows, -1, kv_heads, fold, dim).transpose(1, 2)
    keys = cache_k.index_select(0, group.keys).view(rows, -1, kv_heads, dim).transpose(1, 2)
    values = cache_v.index_select(0, group.keys).view(rows, -1, kv_heads, dim).transpose(1, 2)
    out = functional.scaled_dot_product_attention(
        queries.reshape(rows, kv_heads, -1, dim), keys, values, attn_mask=group.mask
    )
    return out.view(rows, kv_heads, -1, fold, dim).transpose(1, 2).reshape(-1, heads, dim)


def sequence_rows(ctx: AttentionContext, *, apart: bool) -> list[Row]:
    """The step's rows of ordinary sequences, or each of their tokens as a row of its own."""
    tables, rows, first = ctx.block_tables.cpu(), [], 0
    for index, (queries, keys) in enumerate(zip(ctx.query_lens, ctx.key_lens, strict=True)):
        slots = row_slots(tables[index], keys, ctx.block_size)
        if apart:
            for offset in range(queries):
                visible_keys = slots[: keys - queries + offset + 1]
                rows.append(Row(torch.tensor([first + offset]), visible_keys, None))
        else:
            positions = torch.arange(keys - queries, keys)
            visible = None if queries == 1 else torch.arange(keys) <= positions[:, None]
            rows.append(Row(torch.arange(first, first + queries), slots, visible))
        first += queries
    return rows


def branch_rows(ctx: AttentionContext, branches: BranchContext, *, apart: bool) -> list[Row]:
    """One row for each trunk, whose keys are the trunk's followed by every branch's suffix; or one for each branch."""
    tables = ctx.block_tables.cpu()
    trunks, prefixes, suffixes = branches.trunk_row.cpu(), branches.prefix_len.cpu(), branches.suffix_slots.cpu()
    lengths = branches.suffix_len.cpu()
    by_trunk: dict[int, list[int]] = defaultdict(list)
    for token, trunk in enumerate(trunks.tolist()):
        by_trunk[trunk].append(token)
    rows = []
    for trunk, members in by_trunk.items():
        for tokens in [[token] for token in members] if apart else [members]:
            longest = int(prefixes[tokens].max())
            own = [suffixes[token, : int(lengths[token])] for token in tokens]
            starts = torch.tensor([longest] + [len(slots) for slots in own]).cumsum(0)
            keys = torch.cat([row_slots(tables[trunk], longest, ctx.block_size), *own])
            index = torch.arange(len(keys))
            on_trunk = index < prefixes[tokens][:, None]
            on_branch = (index >= starts[:-1, None]) & (index < starts[1:, None])
            rows.append(Row(torch.tensor(tokens), keys, None if apart else on_trunk | on_branch))
    return rows


def row_slots(table: torch.Tensor, length: int, block_size: int) -> torch.Tensor:
    """Slots of positions 0..length-1 of a row with block ids `table` [W]."""
    blocks = table[: -(-length // block_size)]
    return (blocks[:, None] * block_size + torch.arange(block_size)).flatten()[:length]


def alike(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows in batches whose queries and keys are within a factor of two, so that filling up costs little."""
    batches: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in rows:
        batches[max(4, len(row.queries).bit_length()), max(8, len(row.keys).bit_length())].append(row)
    return list(batches.values())


def make_group(rows: list[Row], fold: int, dtype: torch.dtype, device: torch.device) -> Group:
    """Rows filled up to the longest of them."""
    most_queries, most_keys = max(len(row.queries) for row in rows), max(len(row.keys) for row in rows)
    queries = torch.stack([_fill(row.queries, most_queries, -1) for row in rows])
    keys = torch.stack([_fill(row.keys, most_keys, 0) for row in rows])
    mask = None
    if any(row.visible is not None or len(row.keys) < most_keys for row in rows):
        visible = torch.zeros(len(rows), most_queries, most_keys, dtype=torch.bool)
        for index, row in enumerate(rows):
            if row.visible is None:
                visible[index, :, : len(row.keys)] = True
            else:
                visible[index, : len(row.queries), : len(row.keys)] = row.visible
                visible[index, len(row.queries) :, : len(row.keys)] = row.visible[-1]
        blank = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, float("-inf"))
        mask = blank.repeat_interleave(fold, dim=1).unsqueeze(1).to(device)
    return Group(len(rows), queries.flatten().to(device), keys.flatten().to(device), mask)


def _fill(row: torch.Tensor, length: int, source: int) -> torch.Tensor:
    return torch.cat([row, row[source].expand(length - len(row))]) if len(row) < length else row
