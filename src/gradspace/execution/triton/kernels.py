# mypy: ignore-errors
"""Triton kernels that fuse a product of embeddings with the reductions of its scores.

A program computes one tile of scores in registers and writes, for every statistic, one number per
row and one per column of the tile. The caller merges these partial results in a fixed order. No
score reaches memory and no result depends on the order of the programs: equal inputs give identical
bits.

Partial results are laid out as [tiles along the other side, columns of given, queries].
"""

from __future__ import annotations

import triton
import triton.language as tl

NONE = tl.constexpr(0)
SUM = tl.constexpr(1)
LOG_SUM_EXP = tl.constexpr(2)
NO, YES, EITHER = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
LOG_ZERO = tl.constexpr(-1e30)
SAFE_RANGE = tl.constexpr(60.0)
GROUP = tl.constexpr(8)


@triton.jit
def _place(n, m, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Tile of this program, ordered so that concurrent programs share rows and columns in cache."""
    number = tl.program_id(0)
    down, across = tl.cdiv(n, HEIGHT), tl.cdiv(m, WIDTH)
    first = number // (GROUP * across) * GROUP
    size = min(down - first, GROUP)
    within = number % (GROUP * across)
    return first + within % size, within // size


@triton.jit
def _scores(
    rows, columns, row, column, d,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    scores = tl.zeros((HEIGHT, WIDTH), tl.float32)
    for k in range(0, d, DEPTH):
        scores = tl.dot(
            rows.load([row, k]), columns.load([column, k]).T, scores, input_precision=PRECISION
        )
    return scores


@triton.jit
def _negatives(
    row_ids, column_ids, row, column, n, m,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Rows and columns of the tile, and a mask of its negatives.

    EVEN means that no tile extends beyond the block, so that no bounds need masking.
    """
    r, c = row + tl.arange(0, HEIGHT), column + tl.arange(0, WIDTH)
    row_id = tl.load(row_ids + r, mask=r < n, other=0)
    column_id = tl.load(column_ids + c, mask=c < m, other=0)
    negative = row_id[:, None] != column_id[None, :]
    if not EVEN:
        negative = negative & (r < n)[:, None] & (c < m)[None, :]
    return r, c, negative


@triton.jit
def _column(values, q, num_queries, k, COLUMNS: tl.constexpr, AXIS: tl.constexpr):
    """Load column k of the queries' values, shaped to broadcast over the candidates."""
    return tl.expand_dims(tl.load(values + q * COLUMNS + k, mask=q < num_queries, other=0.0), AXIS)


@triton.jit
def _exp(x):
    """Exponential function, without tl.exp's care for results below 1e-38."""
    return tl.exp2(x * 1.4426950408889634)


@triton.jit
def _log(reference, total):
    """Compute reference + log(total), or LOG_ZERO if total is 0."""
    some = total > 0.0
    return tl.where(some, reference + tl.log(tl.where(some, total, 1.0)), LOG_ZERO)


@triton.jit
def _terms(scores, negative, given, TERM: tl.constexpr, KIND: tl.constexpr, VANISHES: tl.constexpr):
    """Terms of the negatives; other scores are -inf, at which many terms vanish by themselves."""
    terms = TERM(scores, given)
    if not VANISHES:
        terms = tl.where(negative, terms, 0.0 if KIND == SUM else LOG_ZERO)
    return terms


@triton.jit
def _log_sum_exp(terms, AXIS: tl.constexpr):
    highest = tl.maximum(tl.max(terms, AXIS), LOG_ZERO)
    return _log(highest, tl.sum(_exp(terms - tl.expand_dims(highest, AXIS)), AXIS))


@triton.jit
def _add_side(
    scores, negative, given, out, q, num_queries, tile,
    TERM: tl.constexpr, KIND: tl.constexpr, VANISHES: tl.constexpr,
    COLUMNS: tl.constexpr, AXIS: tl.constexpr,
):  # fmt: skip
    """Write the partial results of one side's statistic, summing over AXIS."""
    for k in tl.static_range(COLUMNS):
        x = _column(given, q, num_queries, k, COLUMNS, AXIS)
        terms = _terms(scores, negative, x, TERM, KIND, VANISHES)
        if KIND == SUM:
            part = tl.sum(terms, AXIS)
        else:
            part = _log_sum_exp(terms, AXIS)
        tl.store(out + (tile * COLUMNS + k) * num_queries + q, part, mask=q < num_queries)


@triton.jit
def longest(vectors, squares, count, d, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Square of the length of the longest vector."""
    r = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in range(0, d, WIDTH):
        x = first + tl.arange(0, WIDTH)[None, :]
        values = tl.load(vectors + r.to(tl.int64) * d + x, mask=(r < count) & (x < d), other=0.0)
        total += values.to(tl.float32) * values.to(tl.float32)
    tl.atomic_max(squares, tl.max(tl.sum(total, 1), 0))


@triton.jit
def reference(given, squares, out, TERM: tl.constexpr, SIZE: tl.constexpr):
    """Write what is given, the highest exponent of any score, and whether it can serve for all.

    No score exceeds the product of the lengths of the longest vectors.
    """
    bound = 1.01 * tl.sqrt(tl.load(squares) * tl.load(squares + 1))
    s = (tl.arange(0, SIZE)[None, :] / (SIZE - 1) * 2.0 - 1.0) * bound
    number = tl.load(given)
    terms = TERM(s, number)
    highest = tl.max(tl.max(terms, 1), 0)
    lowest = tl.min(tl.min(tl.where(terms > LOG_ZERO / 2, terms, highest), 1), 0)
    tl.store(out, number)
    tl.store(out + 1, highest)
    tl.store(out + 2, (highest - lowest < SAFE_RANGE).to(tl.float32))


@triton.jit
def _add_served(terms, highest, row_part, column_part, rows, columns):
    """Write both sides' log-sum-exp, for which one reference serves, so that no power is twice."""
    powers = _exp(terms - highest)
    tl.store(row_part, _log(highest, tl.sum(powers, 1)), mask=rows)
    tl.store(column_part, _log(highest, tl.sum(powers, 0)), mask=columns)


@triton.jit
def _add_unserved(terms, row_part, column_part, rows, columns):
    tl.store(row_part, _log_sum_exp(terms, 1), mask=rows)
    tl.store(column_part, _log_sum_exp(terms, 0), mask=columns)


@triton.jit
def _add_both(
    scores, negative, given, row_part, column_part, r, c, n, m,
    TERM: tl.constexpr, KIND: tl.constexpr, VANISHES: tl.constexpr, SERVED: tl.constexpr,
):  # fmt: skip
    """Write the partial results of a statistic whose terms depend on the score alone, both sides.

    given[1] is the reference of exponentials, given[2] tells whether it serves all of them.
    """
    terms = _terms(scores, negative, tl.load(given), TERM, KIND, VANISHES)
    if KIND == SUM:
        tl.store(row_part, tl.sum(terms, 1), mask=r < n)
        tl.store(column_part, tl.sum(terms, 0), mask=c < m)
    elif SERVED == YES:
        _add_served(terms, tl.load(given + 1), row_part, column_part, r < n, c < m)
    elif SERVED == NO:
        _add_unserved(terms, row_part, column_part, r < n, c < m)
    else:
        if tl.load(given + 2) > 0.0:
            _add_served(terms, tl.load(given + 1), row_part, column_part, r < n, c < m)
        else:
            _add_unserved(terms, row_part, column_part, r < n, c < m)


@triton.jit
def _add(
    scores, negative, row_given, column_given, row_out, column_out,
    r, c, n, m, tile_row, tile_column,
    TERM: tl.constexpr, KIND: tl.constexpr, VANISHES: tl.constexpr, SHARED: tl.constexpr,
    BY_ROW: tl.constexpr, BY_COLUMN: tl.constexpr, SERVED: tl.constexpr,
):  # fmt: skip
    """Write a statistic's partial results; BY_ROW and BY_COLUMN count each side's given columns."""
    if SHARED:
        _add_both(
            scores, negative, row_given,
            row_out + tile_column * n + r, column_out + tile_row * m + c,
            r, c, n, m, TERM, KIND, VANISHES, SERVED,
        )  # fmt: skip
    else:
        if BY_ROW > 0:
            _add_side(
                scores, negative, row_given, row_out, r, n, tile_column,
                TERM, KIND, VANISHES, BY_ROW, 1,
            )  # fmt: skip
        if BY_COLUMN > 0:
            _add_side(
                scores, negative, column_given, column_out, c, m, tile_row,
                TERM, KIND, VANISHES, BY_COLUMN, 0,
            )  # fmt: skip


@triton.jit
def _hardest(
    scores, best, at, where, first, mask, AXIS: tl.constexpr, INDEX: tl.constexpr
):  # fmt: skip
    """Write the highest score of every query in the tile and, with INDEX, its candidate."""
    if INDEX:
        value, index = tl.max(scores, AXIS, return_indices=True)
        tl.store(at + where, first + index, mask=mask)
    else:
        value = tl.max(scores, AXIS)
    tl.store(best + where, value, mask=mask)


@triton.jit
def statistics(
    rows, columns, row_ids, column_ids, n, m, d,
    row_best, row_at, column_best, column_at,
    row_given_a, column_given_a, row_out_a, column_out_a,
    row_given_b, column_given_b, row_out_b, column_out_b,
    HARDEST_BY_ROW: tl.constexpr, HARDEST_BY_COLUMN: tl.constexpr, INDEX: tl.constexpr,
    TERM_A: tl.constexpr, KIND_A: tl.constexpr, VANISHES_A: tl.constexpr, SHARED_A: tl.constexpr,
    BY_ROW_A: tl.constexpr, BY_COLUMN_A: tl.constexpr,
    TERM_B: tl.constexpr, KIND_B: tl.constexpr, VANISHES_B: tl.constexpr, SHARED_B: tl.constexpr,
    BY_ROW_B: tl.constexpr, BY_COLUMN_B: tl.constexpr,
    SERVED: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """Write the hardest negatives and up to two sums of one tile, by row and by column.

    If the reference of one sum of exponentials SERVED is YES or NO, and it turns out to be the
    other, nothing is written. One kernel with the code for both is slower.
    """
    if SERVED != EITHER:
        given = row_given_a if KIND_A == LOG_SUM_EXP else row_given_b
        serves = tl.load(given + 2) > 0.0
        if serves != (SERVED == YES):
            return
    tile_row, tile_column = _place(n, m, HEIGHT, WIDTH)
    row, column = tile_row * HEIGHT, tile_column * WIDTH
    scores = _scores(rows, columns, row, column, d, HEIGHT, WIDTH, DEPTH, PRECISION)
    r, c, negative = _negatives(row_ids, column_ids, row, column, n, m, HEIGHT, WIDTH, EVEN)
    scores = tl.where(negative, scores, -float("inf"))
    if HARDEST_BY_ROW:
        _hardest(scores, row_best, row_at, tile_column * n + r, column, r < n, 1, INDEX)
    if HARDEST_BY_COLUMN:
        _hardest(scores, column_best, column_at, tile_row * m + c, row, c < m, 0, INDEX)
    if KIND_A != NONE:
        _add(
            scores, negative, row_given_a, column_given_a, row_out_a, column_out_a,
            r, c, n, m, tile_row, tile_column,
            TERM_A, KIND_A, VANISHES_A, SHARED_A, BY_ROW_A, BY_COLUMN_A, SERVED,
        )  # fmt: skip
    if KIND_B != NONE:
        _add(
            scores, negative, row_given_b, column_given_b, row_out_b, column_out_b,
            r, c, n, m, tile_row, tile_column,
            TERM_B, KIND_B, VANISHES_B, SHARED_B, BY_ROW_B, BY_COLUMN_B, SERVED,
        )  # fmt: skip


@triton.jit
def _weights_of_side(
    weights, scores, negative, factor, given, result, gradient, given_out, q, num_queries, tile,
    TERM: tl.constexpr, DERIVATIVES: tl.constexpr, KIND: tl.constexpr, VANISHES: tl.constexpr,
    SHARED: tl.constexpr, COLUMNS: tl.constexpr, TO_GIVEN: tl.constexpr, AXIS: tl.constexpr,
):  # fmt: skip
    """Add the weights that one side gives to the scores, and write the gradient of its `given`.

    With VANISHES, pairs that are not negatives have a score of -inf and contribute nothing.
    """
    for k in tl.static_range(COLUMNS):
        if SHARED:
            x = tl.load(given)
        else:
            x = _column(given, q, num_queries, k, COLUMNS, AXIS)
        outer = _column(gradient, q, num_queries, k, COLUMNS, AXIS) * tl.load(factor)
        by_score, by_given = DERIVATIVES(scores, x)
        if KIND == LOG_SUM_EXP:
            total = _column(result, q, num_queries, k, COLUMNS, AXIS)
            outer = outer * _exp(TERM(scores, x) - total)
        if not VANISHES:
            outer = tl.where(negative, outer, 0.0)
            by_score = tl.where(negative, by_score, 0.0)
            by_given = tl.where(negative, by_given, 0.0)
        weights += outer * by_score
        if TO_GIVEN:
            part = tl.sum(outer * by_given, AXIS)
            tl.store(given_out + (tile * COLUMNS + k) * num_queries + q, part, mask=q < num_queries)
    return weights


@triton.jit
def weights(
    rows, columns, row_ids, column_ids, n, m, d, out, factors,
    row_given, row_result, row_gradient, row_given_out,
    column_given, column_result, column_gradient, column_given_out,
    row_slopes, column_slopes, SINGLE: tl.constexpr,
    TERM: tl.constexpr, DERIVATIVES: tl.constexpr, KIND: tl.constexpr, VANISHES: tl.constexpr,
    SHARED: tl.constexpr, BY_ROW: tl.constexpr, BY_COLUMN: tl.constexpr, TO_GIVEN: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """Recompute one tile of scores and write its weights for a statistic of both sides.

    With SINGLE, no query has more than one positive, whose weight comes from the slopes.
    """
    tile_row, tile_column = _place(n, m, HEIGHT, WIDTH)
    row, column = tile_row * HEIGHT, tile_column * WIDTH
    scores = _scores(rows, columns, row, column, d, HEIGHT, WIDTH, DEPTH, PRECISION)
    r, c, negative = _negatives(row_ids, column_ids, row, column, n, m, HEIGHT, WIDTH, EVEN)
    if VANISHES:
        scores = tl.where(negative, scores, -float("inf"))
    total = tl.zeros((HEIGHT, WIDTH), tl.float32)
    if BY_ROW > 0:
        total = _weights_of_side(
            total, scores, negative,
            factors, row_given, row_result, row_gradient, row_given_out,
            r, n, tile_column, TERM, DERIVATIVES, KIND, VANISHES, SHARED, BY_ROW, TO_GIVEN, 1,
        )  # fmt: skip
    if BY_COLUMN > 0:
        total = _weights_of_side(
            total, scores, negative,
            factors + 1, column_given, column_result, column_gradient, column_given_out,
            c, m, tile_row, TERM, DERIVATIVES, KIND, VANISHES, SHARED, BY_COLUMN, TO_GIVEN, 0,
        )  # fmt: skip
    if SINGLE:
        of_row = tl.load(factors) * tl.load(row_slopes + r, mask=r < n, other=0.0)
        of_column = tl.load(factors + 1) * tl.load(column_slopes + c, mask=c < m, other=0.0)
        total = tl.where(negative, total, of_row[:, None] + of_column[None, :])
    out.store([row, column], total.to(out.dtype))
