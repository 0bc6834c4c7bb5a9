# mypy: ignore-errors
"""Triton kernels over lists of pairs, such as the two per row that a mined objective weighs."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def recover(
    queries, candidates, query_ids, candidate_ids, order, block_of, starts, ends, found, m, d,
    QUERIES: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Find the candidate with each query's highest score within its best block; -1 for none.

    `order` lists the queries by their best block. Program i has the queries order[starts[i]] ..
    order[ends[i] - 1], at most QUERIES of them, all of block block_of[i].
    """
    i = tl.program_id(0)
    start, end, block = tl.load(starts + i), tl.load(ends + i), tl.load(block_of + i)
    if start < end:
        at = start + tl.arange(0, QUERIES)
        q = tl.load(order + at, mask=at < end, other=0)
        c = block * WIDTH + tl.arange(0, WIDTH)
        scores = tl.zeros((QUERIES, WIDTH), tl.float32)
        for k in range(0, d, DEPTH):
            x = k + tl.arange(0, DEPTH)
            a = tl.load(queries + q[:, None] * d + x[None, :], mask=(x < d)[None, :], other=0.0)
            b = tl.load(
                candidates + c.to(tl.int64)[:, None] * d + x[None, :],
                mask=(c < m)[:, None] & (x < d)[None, :],
                other=0.0,
            )
            scores = tl.dot(a, b.T, scores, input_precision=PRECISION)
        own = tl.load(query_ids + q)
        other = tl.load(candidate_ids + c, mask=c < m, other=0)
        negative = (own[:, None] != other[None, :]) & (c < m)[None, :]
        scores = tl.where(negative, scores, -float("inf"))
        best, index = tl.max(scores, 1, return_indices=True)
        index = tl.where(best > -float("inf"), block * WIDTH + index, -1)
        tl.store(found + q, index.to(tl.int64), mask=at < end)


@triton.jit
def scores_of_pairs(rows, columns, row, column, out, d, WIDTH: tl.constexpr):
    """out[k] = rows[row[k]] . columns[column[k]]"""
    k = tl.program_id(0)
    r, c = tl.load(row + k), tl.load(column + k)
    total = tl.zeros((WIDTH,), tl.float32)
    for first in range(0, d, WIDTH):
        x = first + tl.arange(0, WIDTH)
        left = tl.load(rows + r * d + x, mask=x < d, other=0.0)
        right = tl.load(columns + c * d + x, mask=x < d, other=0.0)
        total += left.to(tl.float32) * right.to(tl.float32)
    tl.store(out + k, tl.sum(total))


@triton.jit
def sums_of_pairs(weights, of, source, ends, out, d, PAIRS: tl.constexpr, WIDTH: tl.constexpr):
    """out[t] = sum of weights[k] of[source[k]] over pairs k, ends[t - 1] <= k < ends[t]."""
    t = tl.program_id(0).to(tl.int64)
    x = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    start = tl.load(ends + t - 1, mask=t > 0, other=0)
    end = tl.load(ends + t)
    total = tl.zeros((WIDTH,), tl.float32)
    for first in range(start, end, PAIRS):
        k = first + tl.arange(0, PAIRS)
        s = tl.load(source + k, mask=k < end, other=0)
        w = tl.load(weights + k, mask=k < end, other=0.0)
        here = (k < end)[:, None] & (x < d)[None, :]
        values = tl.load(of + s[:, None] * d + x[None, :], mask=here, other=0.0)
        total += tl.sum(w[:, None] * values.to(tl.float32), 0)
    tl.store(out + t * d + x, total.to(out.dtype.element_ty), mask=x < d)
