# mypy: ignore-errors
"""Triton kernels over queries: from the results of tiles to values, and from these to weights.

A query's positives are in slots, [queries, SLOTS]; an unused slot holds the candidate -1.
"""

from __future__ import annotations

import triton
import triton.language as tl

from gradspace.execution.triton.row_kernels import facts_of, store_facts

LOG_ZERO = tl.constexpr(-1e30)
BATCH = tl.constexpr(64)


@triton.jit
def _slot(index, q, k, num_queries, COUNT: tl.constexpr):
    """Load the candidates in the slots of some queries; -1 in unused slots."""
    return tl.load(index + q * COUNT + k, mask=(q < num_queries) & (k < COUNT), other=-1)


@triton.jit
def _count(
    query_ids, candidate_ids, most, q, num_queries, num_candidates,
    QUERIES: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Raise `most` to the number of candidates that have the id of one of some queries."""
    q = (q + tl.arange(0, QUERIES))[:, None]
    own = tl.load(query_ids + q, mask=q < num_queries, other=0)
    total = tl.zeros((QUERIES, CANDIDATES), tl.int32)
    for start in range(0, num_candidates, CANDIDATES):
        c = start + tl.arange(0, CANDIDATES)[None, :]
        there = (c < num_candidates) & (q < num_queries)
        other = tl.load(candidate_ids + c, mask=c < num_candidates, other=0)
        total += ((own == other) & there).to(tl.int32)
    tl.atomic_max(most, tl.max(tl.sum(total, 1), 0))


@triton.jit
def count_positives(
    image_ids, text_ids, most, n, m, QUERIES: tl.constexpr, CANDIDATES: tl.constexpr
):  # fmt: skip
    """Raise `most` to the largest number of texts of an image, and of images of a text."""
    program = tl.program_id(0)
    programs_of_images = tl.cdiv(n, QUERIES)
    if program < programs_of_images:
        _count(image_ids, text_ids, most, program * QUERIES, n, m, QUERIES, CANDIDATES)
    else:
        q = (program - programs_of_images) * QUERIES
        _count(text_ids, image_ids, most + 1, q, m, n, QUERIES, CANDIDATES)


@triton.jit
def _fill(
    query_ids, candidate_ids, index, q, num_queries, num_candidates,
    COUNT: tl.constexpr, QUERIES: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Write the candidates that have the id of each query, in order, then -1 in unused slots."""
    q = (q + tl.arange(0, QUERIES))[:, None]
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
def fill_slots(
    image_ids, text_ids, texts_of_images, images_of_texts, n, m,
    COUNT: tl.constexpr, COUNT_T: tl.constexpr, QUERIES: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Write the texts of every image, and the images of every text."""
    program = tl.program_id(0)
    programs_of_images = tl.cdiv(n, QUERIES)
    if program < programs_of_images:
        _fill(
            image_ids, text_ids, texts_of_images, program * QUERIES, n, m,
            COUNT, QUERIES, CANDIDATES,
        )  # fmt: skip
    else:
        _fill(
            text_ids, image_ids, images_of_texts, (program - programs_of_images) * QUERIES, m, n,
            COUNT_T, QUERIES, CANDIDATES,
        )  # fmt: skip


@triton.jit
def _prepare(
    queries, candidates, index, scores, square, q, num_queries, d,
    COUNT: tl.constexpr, QUERIES: tl.constexpr, WIDTH: tl.constexpr,
    SCORED: tl.constexpr, SQUARED: tl.constexpr,
):  # fmt: skip
    """Write the scores of the slots of some queries, and raise `square` to their longest's."""
    q = (q + tl.arange(0, QUERIES))[:, None]
    left = queries + q.to(tl.int64) * d
    if SQUARED:
        total = tl.zeros((QUERIES, WIDTH), tl.float32)
        for first in range(0, d, WIDTH):
            x = first + tl.arange(0, WIDTH)[None, :]
            values = tl.load(left + x, mask=(q < num_queries) & (x < d), other=0.0).to(tl.float32)
            total += values * values
        tl.atomic_max(square, tl.max(tl.sum(total, 1), 0))
    if SCORED:
        for k in range(COUNT):
            c = _slot(index, q, k, num_queries, COUNT)
            right = candidates + c.to(tl.int64) * d
            total = tl.zeros((QUERIES, WIDTH), tl.float32)
            for first in range(0, d, WIDTH):
                x = first + tl.arange(0, WIDTH)[None, :]
                here = (c >= 0) & (x < d)
                values = tl.load(left + x, mask=here, other=0.0).to(tl.float32)
                total += values * tl.load(right + x, mask=here, other=0.0).to(tl.float32)
            score = tl.where(c >= 0, tl.sum(total, 1, keep_dims=True), float("inf"))
            tl.store(scores + q * COUNT + k, score, mask=q < num_queries)


@triton.jit
def prepare(
    images, texts, texts_of_images, images_of_texts, by_image, by_text, squares, finished, n, m, d,
    COUNT: tl.constexpr, COUNT_T: tl.constexpr,
    QUERIES: tl.constexpr, WIDTH: tl.constexpr,
    BY_POSITION: tl.constexpr, SQUARED: tl.constexpr,
):  # fmt: skip
    """Write the scores of all slots, infinity in unused ones, and the longest vectors' squares.

    With BY_POSITION the slots of the texts have the scores of those of the images. `finished`,
    which counts programs of `finish`, becomes 0.
    """
    program = tl.program_id(0)
    if program == 0:
        tl.store(finished, 0)
    programs_of_images = tl.cdiv(n, QUERIES)
    if program < programs_of_images:
        _prepare(
            images, texts, texts_of_images, by_image, squares, program * QUERIES, n, d,
            COUNT, QUERIES, WIDTH, True, SQUARED,
        )  # fmt: skip
    else:
        _prepare(
            texts, images, images_of_texts, by_text, squares + 1,
            (program - programs_of_images) * QUERIES, m, d,
            COUNT_T, QUERIES, WIDTH, not BY_POSITION, SQUARED,
        )  # fmt: skip


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
def _finish(
    scores, index, slot_slopes, best, best_at, best_slopes, hardest,
    parts_a, results_a, slopes_a, parts_b, results_b, slopes_b,
    values, counted, smallest, batch, num_batch, q, num_queries, num_candidates, tiles,
    QUERY: tl.constexpr, WEIGH: tl.constexpr, COUNT: tl.constexpr, QUERIES: tl.constexpr,
    SLOTS: tl.constexpr,
):  # fmt: skip
    """Write the value of some queries and its slopes along positives' scores and statistics."""
    q = (q + tl.arange(0, QUERIES))[:, None]
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


@triton.jit
def finish(
    scores, index, slot_slopes, best, best_at, best_slopes, hardest,
    parts_a, results_a, slopes_a, parts_b, results_b, slopes_b,
    scores_t, index_t, slot_slopes_t, best_t, best_at_t, best_slopes_t, hardest_t,
    parts_a_t, results_a_t, slopes_a_t, parts_b_t, results_b_t, slopes_b_t,
    values, finished, value, facts, smallest, batch, num_batch, n, m, across, down,
    QUERY: tl.constexpr, WEIGH: tl.constexpr, COUNT: tl.constexpr, COUNT_T: tl.constexpr,
    QUERIES: tl.constexpr, SLOTS: tl.constexpr, SLOTS_T: tl.constexpr,
    MEAN: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Finish the images and then the texts, whose arguments end in _t; reduce their values.

    `values` holds the values of all queries, and then whether each has a positive. The program that
    is the last to be `finished` writes the facts of the batch, as `row_kernels.combine` does.
    """
    program = tl.program_id(0)
    programs_of_images = tl.cdiv(n, QUERIES)
    if program < programs_of_images:
        _finish(
            scores, index, slot_slopes, best, best_at, best_slopes, hardest,
            parts_a, results_a, slopes_a, parts_b, results_b, slopes_b,
            values, values + n + m, smallest, batch, num_batch,
            program * QUERIES, n, m, across, QUERY, WEIGH, COUNT, QUERIES, SLOTS,
        )  # fmt: skip
    else:
        _finish(
            scores_t, index_t, slot_slopes_t, best_t, best_at_t, best_slopes_t, hardest_t,
            parts_a_t, results_a_t, slopes_a_t, parts_b_t, results_b_t, slopes_b_t,
            values + n, values + 2 * n + m, smallest, batch, num_batch,
            (program - programs_of_images) * QUERIES, m, n, down,
            QUERY, WEIGH, COUNT_T, QUERIES, SLOTS_T,
        )  # fmt: skip
    tl.debug_barrier()  # all values of this program are written before it counts as finished
    if tl.atomic_add(finished, 1) == programs_of_images + tl.cdiv(m, QUERIES) - 1:
        found, scale, ratio, number = facts_of(values, n, m, MEAN, AT_ONCE)
        store_facts(value, facts, found, scale, ratio, number)


# --- backward -----------------------------------------------------------------------------------


@triton.jit
def _add(weights, stride, image, text, slope, mask):
    at = weights + image.to(tl.int64) * stride + text
    total = tl.load(at, mask=mask, other=0.0).to(tl.float32) + slope
    tl.store(at, total.to(weights.dtype.element_ty), mask=mask)


@triton.jit
def add_single(
    weights, stride, first, last, m, factors,
    texts_of_images, slopes, images_of_texts, slopes_t, slot_factors,
    hardest, best_slopes, hardest_t, best_slopes_t,
    COUNT: tl.constexpr, COUNT_T: tl.constexpr, MINED: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """Add the weights of single candidates, in the rows of images first .. last - 1.

    These are the positives and, with MINED, the hardest negatives. What a text gives to an image
    that gives something to the text as well is added by the image: no two programs write one cell.
    """
    program = tl.program_id(0)
    programs_of_images = tl.cdiv(last - first, QUERIES)
    factor, factor_t = tl.load(factors), tl.load(factors + 1)
    if program < programs_of_images:
        i = first + program * QUERIES + tl.arange(0, QUERIES)
        slot_factor, slot_factor_t = tl.load(slot_factors), tl.load(slot_factors + 1)
        for k in range(COUNT):
            t = _slot(texts_of_images, i, k, last, COUNT)
            slope = slot_factor * tl.load(slopes + i * COUNT + k, mask=t >= 0, other=0.0)
            for j in range(COUNT_T):
                here = (t >= 0) & (tl.load(images_of_texts + t * COUNT_T + j, mask=t >= 0) == i)
                slope += slot_factor_t * tl.load(slopes_t + t * COUNT_T + j, mask=here, other=0.0)
            _add(weights, stride, i - first, t, slope, t >= 0)
        if MINED:
            t = _slot(hardest, i, 0, last, 1)
            slope = factor * tl.load(best_slopes + i, mask=t >= 0, other=0.0)
            here = (t >= 0) & (tl.load(hardest_t + t, mask=t >= 0) == i)
            slope += factor_t * tl.load(best_slopes_t + t, mask=here, other=0.0)
            _add(weights, stride, i - first, t, slope, t >= 0)
    elif MINED:
        t = (program - programs_of_images) * QUERIES + tl.arange(0, QUERIES)
        i = _slot(hardest_t, t, 0, m, 1)
        here = (i >= first) & (i < last)
        here = here & (tl.load(hardest + i, mask=here, other=-1) != t)
        slope = factor_t * tl.load(best_slopes_t + t, mask=here, other=0.0)
        _add(weights, stride, i - first, t, slope, here)
