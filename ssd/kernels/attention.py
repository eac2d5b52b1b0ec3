"""Paged attention in tiles of (query tokens x the query heads that share a key head), keys split over programs.

Sequence mode: a row's tokens see the row's keys up to their own position. Branch mode: the tokens are branches; those
of one trunk form tiles that read the trunk's prefix once, and a few more splits of a tile read the branches' suffixes.

A split leaves its part of each token unnormalised with the running maximum and total (base 2); `merge_parts` joins
them. With one split of a sequence the tile writes the result itself. All scores, sums and parts are float32.
"""

# mypy: allow-untyped-defs
import triton
import triton.language as tl

from ssd.kernels.dependent import let_next_start, wait_for_previous

VARYING = (
    "tokens",
    "first",
    "rows",
    "longest",
    "shortest",
    "splits",
    "depth",
    "tiles_a_trunk",
    "table_stride",
    "suffix_stride",
)
"""Arguments that change from step to step: no kernel is compiled for their values."""


@triton.jit
def absorb(scores, v, top, total, acc, precision: tl.constexpr):
    """One tile of scores [M, N] and values [N, D] taken into the running softmax. Masked scores are -inf; a row that
    has seen nothing yet keeps top = -inf, and a tile that a row sees nothing of changes none of its bits."""
    best = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(best == float("-inf"), 0.0, best)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(top - base)
    acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision=precision)
    return best, total * shrink + tl.sum(weights, 1), acc


@triton.jit
def row_of_tile(query_starts, pid, tokens, first, rows, rows_wide: tl.constexpr, tile_tokens: tl.constexpr):
    """The row that tile `pid` belongs to: row r owns the tiles from (its first token in the window) // tile_tokens + r
    on, which are enough for it."""
    index = tl.arange(0, rows_wide)
    starts = tl.load(query_starts + index, mask=index < rows, other=0).to(tl.int32)
    starts = tl.minimum(tl.maximum(starts - first, 0), tokens)
    return tl.sum(((starts // tile_tokens + index <= pid) & (index < rows)).to(tl.int32), 0) - 1


@triton.jit(do_not_specialize=VARYING)
def attend_tiles(
    q,
    cache_k,
    cache_v,
    out,
    parts,
    stats,
    query_starts,
    context_lens,
    tables,
    trunk_rows,
    prefix_lens,
    suffix_slots,
    suffix_lens,
    q_stride,
    key_stride,
    value_stride,
    table_stride,
    suffix_stride,
    tokens,
    first,
    rows,
    shortest,
    longest,
    splits,
    depth,
    tiles_a_trunk,
    scale,
    kv_heads: tl.constexpr,
    fold: tl.constexpr,
    dim: tl.constexpr,
    dim_wide: tl.constexpr,
    block_size: tl.constexpr,
    tile: tl.constexpr,
    step: tl.constexpr,
    least_chunk: tl.constexpr,
    fixed_chunk: tl.constexpr,
    search: tl.constexpr,
    branch: tl.constexpr,
    in_parts: tl.constexpr,
    rows_wide: tl.constexpr,
    tokens_wide: tl.constexpr,
    precision: tl.constexpr,
    early: tl.constexpr,
):
    """Grid (tiles, kv_heads, splits, and in branch mode as many more as the suffixes of one tile need).

    Works on the tokens first .. first + tokens - 1 and on rows of shortest..longest query tokens. `parts`
    [splits, tokens, heads, dim] and `stats` [splits, tokens, heads, 2] count tokens from `first`.
    """
    wait_for_previous(early)
    let_next_start(early)
    pid, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tile_tokens: tl.constexpr = tile // fold
    heads: tl.constexpr = kv_heads * fold
    lane = tl.arange(0, tile)
    member = lane // fold
    head = kv_head * fold + lane % fold
    channel = tl.arange(0, dim_wide)
    in_dim = channel < dim

    if branch:
        row = pid // tiles_a_trunk
        index = tl.arange(0, tokens_wide)
        mine = tl.load(trunk_rows + index, mask=index < tokens, other=-1) == row
        begin = tl.min(tl.where(mine, index, tokens), 0) + (pid % tiles_a_trunk) * tile_tokens
        end = tl.max(tl.where(mine, index + 1, 0), 0)
    else:
        row = row_of_tile(query_starts, pid, tokens, first, rows, rows_wide, tile_tokens) if search else pid
        row_begin = tl.load(query_starts + row).to(tl.int32)
        row_end = tl.load(query_starts + row + 1).to(tl.int32)
        begin = tl.minimum(tl.maximum(row_begin, first), first + tokens)
        end = tl.minimum(tl.maximum(row_end, first), first + tokens)
        if search:
            begin += (pid - (begin - first) // tile_tokens - row) * tile_tokens
        if not in_parts and row == rows - 1 and split == 0:
            # Tokens that belong to no row: their results are zeros, not whatever the memory held.
            for bare in range(tl.maximum(row_end, first), first + tokens, tile_tokens):
                left = bare + member
                unset = (left < first + tokens) & (member < tile_tokens)
                place = (left.to(tl.int64) * heads + head)[:, None] * dim + channel[None, :]
                blank = tl.zeros([tile, dim_wide], dtype=out.dtype.element_ty)
                tl.store(out + place, blank, mask=unset[:, None] & in_dim[None, :])
        if (row_end - row_begin < shortest) | (row_end - row_begin > longest):
            return
    if begin >= end:
        return

    token = begin + member
    valid = (token < end) & (member < tile_tokens)
    if branch:
        valid = valid & (tl.load(trunk_rows + token, mask=valid, other=-1) == row)
        limit = tl.load(prefix_lens + token, mask=valid, other=0).to(tl.int32)
    else:
        context = tl.load(context_lens + row).to(tl.int32)
        limit = tl.where(valid, context - row_end + token + 1, 0)
    q_place = token.to(tl.int64)[:, None] * q_stride + head[:, None] * dim + channel[None, :]
    queries = tl.load(q + q_place, mask=valid[:, None] & in_dim[None, :], other=0.0)

    top = tl.full([tile], float("-inf"), dtype=tl.float32)
    total = tl.zeros([tile], dtype=tl.float32)
    acc = tl.zeros([tile, dim_wide], dtype=tl.float32)
    offset = kv_head * dim + channel[None, :]

    seen = tl.max(limit, 0)
    chunk = least_chunk
    if not fixed_chunk:
        chunk = tl.maximum(least_chunk, tl.cdiv(tl.cdiv(seen, splits), step) * step)
    # The splits after the last one are those of the suffixes: their share of the prefix is empty.
    start = tl.minimum(split * chunk, seen)
    stop = tl.minimum(start + chunk, seen)
    if branch:
        stop = tl.where(split < splits, stop, start)
    table = tables + row.to(tl.int64) * table_stride
    for key in range(start, stop, step):
        position = key + tl.arange(0, step)
        live = position < stop
        block = tl.load(table + position // block_size, mask=live, other=0)
        slot = (block * block_size + position % block_size).to(tl.int64)
        mask = live[:, None] & in_dim[None, :]
        k = tl.load(cache_k + slot[:, None] * key_stride + offset, mask=mask, other=0.0)
        v = tl.load(cache_v + slot[:, None] * value_stride + offset, mask=mask, other=0.0)
        scores = tl.dot(queries, tl.trans(k), input_precision=precision) * scale
        scores = tl.where(position[None, :] < limit[:, None], scores, float("-inf"))
        top, total, acc = absorb(scores, v, top, total, acc, precision)

    if branch:
        # Whole suffixes to a split, as many as one step holds, so that no branch's place decides how its sum is cut.
        together = tl.maximum(1, step // depth)
        one = (split - splits) * together
        for key in range(0, tl.where(split < splits, 0, together * depth), step):
            nth = key + tl.arange(0, step)
            owner = one + nth // depth
            nested = nth % depth
            known = (begin + owner < end) & (owner < tl.minimum(one + together, tile_tokens))
            live = nested < tl.load(suffix_lens + begin + owner, mask=known, other=0)
            slot = tl.load(suffix_slots + (begin + owner) * suffix_stride + nested, mask=live, other=0)
            mask = live[:, None] & in_dim[None, :]
            k = tl.load(cache_k + slot[:, None] * key_stride + offset, mask=mask, other=0.0)
            v = tl.load(cache_v + slot[:, None] * value_stride + offset, mask=mask, other=0.0)
            scores = tl.dot(queries, tl.trans(k), input_precision=precision) * scale
            scores = tl.where(live[None, :] & (owner[None, :] == member[:, None]), scores, float("-inf"))
            top, total, acc = absorb(scores, v, top, total, acc, precision)

    wanted = valid[:, None] & in_dim[None, :]
    if in_parts:
        place = (split.to(tl.int64) * tokens + token - first) * heads + head
        tl.store(stats + place * 2, top, mask=valid)
        tl.store(stats + place * 2 + 1, total, mask=valid)
        some = wanted & (top > float("-inf"))[:, None]
        tl.store(parts + place[:, None] * dim + channel[None, :], acc, mask=some)
    else:
        result = acc / tl.where(total > 0.0, total, 1.0)[:, None]
        place = (token.to(tl.int64) * heads + head)[:, None] * dim + channel[None, :]
        tl.store(out + place, result.to(out.dtype.element_ty), mask=wanted)


@triton.jit(do_not_specialize=VARYING)
def merge_parts(
    parts,
    stats,
    out,
    query_starts,
    tokens,
    first,
    rows,
    longest,
    splits,
    heads: tl.constexpr,
    dim: tl.constexpr,
    dim_wide: tl.constexpr,
    group: tl.constexpr,
    branch: tl.constexpr,
    rows_wide: tl.constexpr,
    early: tl.constexpr,
):
    """Grid (tokens, heads). Parts are summed in their order by groups of `group`, so that splits which a token sees
    nothing of change no bit. Tokens of rows longer than `longest` are left alone; those of no row get zeros."""
    wait_for_previous(early)
    let_next_start(early)
    token, head = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, dim_wide)
    in_dim = channel < dim
    covered = True
    if not branch:
        index = tl.arange(0, rows_wide)
        ends = tl.load(query_starts + 1 + index, mask=index < rows, other=0).to(tl.int32)
        row = tl.sum(((ends <= token + first) & (index < rows)).to(tl.int32), 0)
        covered = row < rows
        begin = tl.load(query_starts + row).to(tl.int32)
        end = tl.load(query_starts + row + 1, mask=covered, other=0).to(tl.int32)
        if end - begin > longest:
            return

    best = float("-inf")
    for start in range(0, splits, group):
        split = start + tl.arange(0, group)
        place = (split.to(tl.int64) * tokens + token) * heads + head
        tops = tl.load(stats + place * 2, mask=(split < splits) & covered, other=float("-inf"))
        best = tl.maximum(best, tl.max(tops, 0))
    base = tl.where(best == float("-inf"), 0.0, best)
    total = 0.0
    acc = tl.zeros([dim_wide], dtype=tl.float32)
    for start in range(0, splits, group):
        split = start + tl.arange(0, group)
        place = (split.to(tl.int64) * tokens + token) * heads + head
        tops = tl.load(stats + place * 2, mask=(split < splits) & covered, other=float("-inf"))
        some = tops > float("-inf")
        weights = tl.exp2(tops - base)
        total += tl.sum(weights * tl.load(stats + place * 2 + 1, mask=some, other=0.0), 0)
        part = tl.load(parts + place[:, None] * dim + channel[None, :], mask=some[:, None] & in_dim[None, :], other=0.0)
        acc += tl.sum(weights[:, None] * part, 0)
    result = acc / tl.where(total > 0.0, total, 1.0)
    place = ((first + token).to(tl.int64) * heads + head) * dim + channel
    tl.store(out + place, result.to(out.dtype.element_ty), mask=in_dim)


@triton.jit
def write_keys(
    k,
    v,
    cache_k,
    cache_v,
    slots,
    k_stride,
    v_stride,
    key_stride,
    value_stride,
    width: tl.constexpr,
    width_wide: tl.constexpr,
    early: tl.constexpr,
):
    """Grid (tokens). k, v [T, width] to the slots of the cache; a negative slot writes nowhere."""
    wait_for_previous(early)
    let_next_start(early)
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    index = tl.arange(0, width_wide)
    mask = (index < width) & (slot >= 0)
    tl.store(cache_k + slot * key_stride + index, tl.load(k + token * k_stride + index, mask=mask), mask=mask)
    tl.store(cache_v + slot * value_stride + index, tl.load(v + token * v_stride + index, mask=mask), mask=mask)
