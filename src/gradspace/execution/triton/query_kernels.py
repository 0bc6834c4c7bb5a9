# mypy: ignore-errors
"""Triton kernels over queries: from the results of tiles to values, and from these to weights.

A query's positives are in slots, [queries, SLOTS]; an unused slot holds the candidate -1.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG_ZERO = tl.constexpr(-1e30)
BATCH = tl.constexpr(64)


@triton.jit
def _slot(index, q, k, num_queries, COUNT: tl.constexpr):
    """Load the candidates in the slots of some queries; -1 in unused slots."""
    return tl.load(index + q * COUNT + k, mask=(q < num_queries) & (k < COUNT), other=-1)


@triton.jit
def count_positives(
    query_ids, candidate_ids, counts, num_queries, num_candidates,
    QUERIES: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Count the candidates that have the id of each query."""
    q = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    own = tl.load(query_ids + q, mask=q < num_queries, other=0)
    total = tl.zeros((QUERIES, CANDIDATES), tl.int32)
    for start in range(0, num_candidates, CANDIDATES):
        c = start + tl.arange(0, CANDIDATES)
        there = c < num_candidates
        other = tl.load(candidate_ids + c, mask=there, other=0)
        total += ((own[:, None] == other[None, :]) & there[None, :]).to(tl.int32)
    tl.store(counts + q, tl.sum(total, 1), mask=q < num_queries)


@triton.jit
def fill_slots(
    query_ids, candidate_ids, index, num_queries, num_candidates,
    COUNT: tl.constexpr, QUERIES: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Write the candidates that have the id of each query, in order, then -1 in unused slots."""
    q = (tl.program_id(0) * QUERIES + tl.arange(0, QUERIES))[:, None]
    own = tl.load(query_ids + q, mask=q < num_queries, other=0)
    used = tl.zeros((QUERIES, 1), tl.int32)
    for start in range(0, num_candidates, CANDIDATES):
        c = start + tl.arange(0, CANDIDATES)[None, :]
        there = (c < num_candidates) & (q < num_queries)
        other = tl.load(candidate_ids + c, mask=c < num_candidates, other=0)
        equal = ((own == other) & there).to(tl.int32)
        if tl.max(tl.max(equal, 1), 0) > 0:
            slot = used + tl.cumsum(equal, 1) - 1
            tl.store(index + q * COUNT + slot, c + 0 * q, mask=(equal > 0) & (slot < COUNT))
            used += tl.sum(equal, 1, keep_dims=True)
    for k in range(COUNT):
        at = index + q * COUNT + k
        tl.store(at, tl.full((QUERIES, 1), -1, tl.int32), mask=(q < num_queries) & (k >= used))


@triton.jit
def scores_of_slots(
    queries, candidates, index, out, d,
    COUNT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the score of every slot; infinity in unused slots."""
    q, k = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = tl.load(index + q * COUNT + k).to(tl.int64)
    total = tl.zeros((WIDTH,), tl.float32)
    for first in range(0, d, WIDTH):
        x = first + tl.arange(0, WIDTH)
        left = tl.load(queries + q * d + x, mask=x < d, other=0.0)
        right = tl.load(candidates + tl.maximum(c, 0) * d + x, mask=x < d, other=0.0)
        total += left.to(tl.float32) * right.to(tl.float32)
    tl.store(out + q * COUNT + k, tl.where(c >= 0, tl.sum(total), float("inf")))


# --- for the functions of formulas.py -----------------------------------------------------------


@triton.jit
def best_of_tiles(best, at, q, num_queries, tiles):
    """Highest score over all tiles, and its candidate."""
    value = tl.full(q.shape, -float("inf"), tl.float32)
    index = tl.full(q.shape, -1, tl.int32)
    for tile in range(tiles):
        here = tl.load(best + tile * num_queries + q, mask=q < num_queries, other=-float("inf"))
        number = tl.load(at + tile * num_queries + q, mask=q < num_queries, other=-1)
        index = tl.where(here > value, number, index)
        value = tl.where((here > value) | (here != here), here, value)
    return value, index


@triton.jit
def sum_of_tiles(
    parts, q, lane, num_queries, tiles, COLUMNS: tl.constexpr, LOG: tl.constexpr
):  # fmt: skip
    """Merge the parts of a sum or log-sum-exp, [tiles, columns, queries]."""
    k = lane if COLUMNS > 1 else 0 * lane
    here = (q < num_queries) & (k < COLUMNS)
    total = tl.zeros((q + k).shape, tl.float32)
    highest = tl.full((q + k).shape, LOG_ZERO, tl.float32)
    for tile in range(tiles):
        where = (tile * COLUMNS + k) * num_queries + q
        if LOG:
            x = tl.load(parts + where, mask=here, other=LOG_ZERO)
            higher = tl.maximum(highest, x)
            total = total * tl.exp(highest - higher) + tl.exp(x - higher)
            highest = higher
        else:
            total += tl.load(parts + where, mask=here, other=0.0)
    if LOG:
        total = tl.maximum(tl.log(total) + highest, LOG_ZERO)
    return tl.max(total, 1, keep_dims=True) if COLUMNS == 1 else total


@triton.jit
def sum_of_batch(limit, batch, count, OF: tl.constexpr):
    """Sum of OF(r) over the batch's positive scores r <= limit, and their number."""
    lane = tl.arange(0, BATCH)[None, :]
    found = tl.zeros((limit + lane).shape, tl.float32)
    number = tl.zeros((limit + lane).shape, tl.float32)
    for start in range(0, count, BATCH):
        r = tl.load(batch + start + lane, mask=start + lane < count, other=float("inf"))
        below = r <= limit
        found += tl.where(below, OF(r), 0.0)
        number += below.to(tl.float32)
    return tl.sum(found, 1, keep_dims=True), tl.sum(number, 1, keep_dims=True)


@triton.jit
def store_column(out, values, q, num_queries):
    tl.store(out + q, values, mask=q < num_queries)


@triton.jit
def store_slots(out, values, q, lane, num_queries, COLUMNS: tl.constexpr):
    """Store one number per slot, or one per query if COLUMNS is 1."""
    if COLUMNS == 1:
        tl.store(out + q + 0 * lane, values + 0.0 * lane, mask=(q < num_queries) & (lane == 0))
    else:
        tl.store(out + q * COLUMNS + lane, values, mask=(q < num_queries) & (lane < COLUMNS))


@triton.jit
def finish_queries(
    scores, index, smallest, batch, num_batch, values, counted, slot_slopes,
    best, best_at, best_slopes, hardest,
    parts_a, results_a, slopes_a, parts_b, results_b, slopes_b,
    num_queries, num_candidates, tiles,
    QUERY: tl.constexpr, WEIGH: tl.constexpr, COUNT: tl.constexpr,
    QUERIES: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Write the value of some queries and its slopes along positives' scores and statistics."""
    q = (tl.program_id(0) * QUERIES + tl.arange(0, QUERIES))[:, None]
    lane = tl.arange(0, SLOTS)[None, :]
    positive = (_slot(index, q, lane, num_queries, COUNT) >= 0) & (lane < COUNT)
    p = tl.load(scores + q * COUNT + lane, mask=positive, other=0.0)
    num_positives = tl.sum(positive.to(tl.float32), 1, keep_dims=True)
    exists = num_positives > 0
    value = QUERY(
        p, positive, lane, num_candidates - num_positives, smallest, batch, num_batch, exists,
        q, num_queries, tiles, slot_slopes, best, best_at, best_slopes, hardest,
        parts_a, results_a, slopes_a, parts_b, results_b, slopes_b, WEIGH, COUNT,
    )  # fmt: skip
    tl.store(values + q, tl.where(exists, value, 0.0), mask=q < num_queries)
    tl.store(counted + q, exists.to(tl.float32), mask=q < num_queries)


# --- backward -----------------------------------------------------------------------------------


@triton.jit
def add_to_weights(
    out, stride, index, slopes, factor, first, last, num_queries,
    COUNT: tl.constexpr, BY_COLUMN: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """Add the slopes along one candidate per slot to the weights of images first .. last - 1.

    The queries are the images or, with BY_COLUMN, the texts. No two of them write the same cell.
    """
    q = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    q = q + (0 if BY_COLUMN else first)
    multiplier = tl.load(factor)
    for k in range(COUNT):
        c = _slot(index, q, k, num_queries, COUNT)
        image, text = (c, q) if BY_COLUMN else (q, c)
        here = (q < num_queries) & (c >= 0) & (image >= first) & (image < last)
        at = out + (image - first).to(tl.int64) * stride + text
        slope = tl.load(slopes + q * COUNT + k, mask=here, other=0.0)
        before = tl.load(at, mask=here, other=0.0).to(tl.float32)
        tl.store(at, (before + multiplier * slope).to(out.dtype.element_ty), mask=here)
