# mypy: ignore-errors
"""Triton kernels that read whole rows of a score matrix: value and weights of each query at once.

A program keeps all candidates of a few queries in registers. Any number of positives is found by
comparing ids next to the scores; they are never listed.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG_ZERO = tl.constexpr(-1e30)


# --- statistics of the negatives and the weights they give, for formulas.py ---------------------


@triton.jit
def hardest(s, negative):
    """Highest negative score, -inf if there is none, and its candidate."""
    masked = tl.where(negative, s, -float("inf"))
    return tl.max(masked, 1, return_indices=True, keep_dims=True)


@triton.jit
def total(s, negative, given, TERM: tl.constexpr):
    return tl.sum(tl.where(negative, TERM(s, given), 0.0), 1, keep_dims=True)


@triton.jit
def log_sum_exp(s, negative, given, TERM: tl.constexpr):
    terms = tl.where(negative, TERM(s, given), LOG_ZERO)
    highest = tl.max(terms, 1, keep_dims=True)
    return tl.log(tl.sum(tl.exp(terms - highest), 1, keep_dims=True)) + highest


@triton.jit
def weigh_total(s, negative, given, slope, DERIVATIVES: tl.constexpr):
    """Gradients that a sum passes to every score, and to what its term is given."""
    by_score, by_given = DERIVATIVES(s, given)
    of_given = tl.where(negative, slope * by_given, 0.0)
    return tl.where(negative, slope * by_score, 0.0), tl.sum(of_given, 1, keep_dims=True)


@triton.jit
def weigh_log_sum_exp(
    s, negative, given, slope, result, TERM: tl.constexpr, DERIVATIVES: tl.constexpr
):
    share = tl.where(negative, tl.exp(TERM(s, given) - result), 0.0)
    return weigh_total(s, negative, given, slope * share, DERIVATIVES)


@triton.jit
def _next_positive(positive, lane, after):
    """Lane of each query's next positive, or the number of lanes if there is none."""
    return tl.min(tl.where(positive & (lane > after), lane, positive.shape[1]), 1, keep_dims=True)


@triton.jit
def total_by_slot(s, among, positive, lane, given, TERM: tl.constexpr):
    """Sum, for every positive, over the others of `among`; the terms depend on the positive."""
    found = tl.zeros(s.shape, tl.float32)
    slot = _next_positive(positive, lane, -1)
    while tl.min(slot) < positive.shape[1]:
        here = lane == slot
        own = tl.sum(tl.where(here, given, 0.0), 1, keep_dims=True)
        part = tl.where(among & (lane != slot), TERM(s, own), 0.0)
        found = tl.where(here, tl.sum(part, 1, keep_dims=True), found)
        slot = _next_positive(positive, lane, slot)
    return found


@triton.jit
def weigh_total_by_slot(s, among, positive, lane, given, slope, DERIVATIVES: tl.constexpr):
    weights = tl.zeros(s.shape, tl.float32)
    of_given = tl.zeros(s.shape, tl.float32)
    slot = _next_positive(positive, lane, -1)
    while tl.min(slot) < positive.shape[1]:
        here = lane == slot
        own = tl.sum(tl.where(here, given, 0.0), 1, keep_dims=True)
        outer = tl.sum(tl.where(here, slope, 0.0), 1, keep_dims=True)
        by_score, by_given = DERIVATIVES(s, own)
        inside = among & (lane != slot)
        weights += tl.where(inside, outer * by_score, 0.0)
        part = tl.sum(tl.where(inside, outer * by_given, 0.0), 1, keep_dims=True)
        of_given = tl.where(here, part, of_given)
        slot = _next_positive(positive, lane, slot)
    return weights, of_given


# --- layout of a call's working memory, each [images + texts] or [images] unless noted ----------


@triton.jit
def _values(work, n, m):
    """Value of every query, followed by whether it has a positive."""
    return work


@triton.jit
def _smallest(work, n, m):
    return work + 2 * (n + m)


@triton.jit
def _counts(work, n, m):
    return work + 2 * (n + m) + n


@triton.jit
def _packed(work, n, m):
    """Scores of every image's positives, [images, texts]."""
    return work + 4 * (n + m)


# --- positives of the whole batch ---------------------------------------------------------------


@triton.jit
def _positives(query_ids, candidate_ids, q, c, n, m):
    """Masks of the pairs within bounds, and of those that belong together."""
    there = (q < n) & (c < m)
    own = tl.load(query_ids + q, mask=q < n, other=0)
    other = tl.load(candidate_ids + c, mask=c < m, other=0)
    return there, there & (own == other)


@triton.jit
def pack_positives(
    scores, query_ids, candidate_ids, work, n, m,
    QUERIES: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Pack the scores of every image's positives; write their number and the smallest of them."""
    q = (tl.program_id(0) * QUERIES + tl.arange(0, QUERIES))[:, None]
    c = tl.arange(0, CANDIDATES)[None, :]
    there, positive = _positives(query_ids, candidate_ids, q, c, n, m)
    s = tl.load(scores + q * m + c, mask=there, other=0.0)
    place = tl.cumsum(positive.to(tl.int32), 1) - 1
    tl.store(_packed(work, n, m) + q * m + place, s, mask=positive)
    count = tl.sum(positive.to(tl.float32), 1, keep_dims=True)
    tl.store(_counts(work, n, m) + q, count, mask=q < n)
    lowest = tl.min(tl.where(positive, s, float("inf")), 1, keep_dims=True)
    tl.store(_smallest(work, n, m) + q, lowest, mask=q < n)


@triton.jit
def smallest_in_batch(work, n, m, IMAGES: tl.constexpr):
    i = tl.arange(0, IMAGES)
    return tl.min(tl.load(_smallest(work, n, m) + i, mask=i < n, other=float("inf")))


@triton.jit
def sum_in_batch(limit, work, n, m, OF: tl.constexpr, IMAGES: tl.constexpr):
    """Sum of OF(r) over the batch's positive scores r <= limit, and their number."""
    i = tl.arange(0, IMAGES)[None, :]
    count = tl.load(_counts(work, n, m) + i, mask=i < n, other=0.0)
    found = tl.zeros(limit.shape, tl.float32)
    number = tl.zeros(limit.shape, tl.float32)
    for k in range(tl.max(count).to(tl.int32)):
        r = tl.load(_packed(work, n, m) + i * m + k, mask=k < count, other=float("inf"))
        below = r <= limit
        found += tl.sum(tl.where(below, OF(r), 0.0), 1, keep_dims=True)
        number += tl.sum(below.to(tl.float32), 1, keep_dims=True)
    return found, number


# --- both directions ----------------------------------------------------------------------------


@triton.jit
def _weigh(
    scores, along, across, query_ids, candidate_ids, values, weights, first, n, m,
    work, num_images, num_texts,
    ROW: tl.constexpr, WEIGH: tl.constexpr,
    QUERIES: tl.constexpr, CANDIDATES: tl.constexpr, IMAGES: tl.constexpr,
):  # fmt: skip
    """Write the value of some queries, whether they have a positive, and all candidates' weights.

    `along` is the stride between candidates in the scores, `across` the one between queries.
    """
    q = (first + tl.arange(0, QUERIES))[:, None]
    lane = tl.arange(0, CANDIDATES)[None, :]
    there, positive = _positives(query_ids, candidate_ids, q, lane, n, m)
    s = tl.load(scores + q * across + lane * along, mask=there, other=0.0)
    negative = there & (positive == 0)
    value, found = ROW(s, positive, negative, lane, work, num_images, num_texts, WEIGH, IMAGES)
    exists = tl.max(positive.to(tl.int32), 1, keep_dims=True) > 0
    not_finite = tl.sum(s * 0.0, 1, keep_dims=True)  # NaN where any score is not finite
    tl.store(values + q, tl.where(exists, value, 0.0) + not_finite, mask=q < n)
    tl.store(values + num_images + num_texts + q, exists.to(tl.float32), mask=q < n)
    if WEIGH:
        tl.store(weights + q * m + lane, tl.where(exists, found, 0.0), mask=there)


@triton.jit
def weigh_rows(
    by_image, by_text, along, across, image_ids, text_ids, work, image_weights, text_weights, n, m,
    ROW: tl.constexpr, WEIGH: tl.constexpr,
    OF_IMAGES: tl.constexpr, OF_TEXTS: tl.constexpr, IMAGES: tl.constexpr, TEXTS: tl.constexpr,
):  # fmt: skip
    """Weigh all images, OF_IMAGES per program, and then all texts, OF_TEXTS per program.

    `along` and `across` are the strides of by_text, which may be a transposed view of by_image. If
    it is not, the weights, [images, texts] and [texts, images], may overwrite the scores: a program
    has read its rows when it writes them.
    """
    program = tl.program_id(0)
    programs_of_images = tl.cdiv(n, OF_IMAGES)
    if program < programs_of_images:
        _weigh(
            by_image, 1, m, image_ids, text_ids, _values(work, n, m), image_weights,
            program * OF_IMAGES, n, m, work, n, m,
            ROW, WEIGH, OF_IMAGES, TEXTS, IMAGES,
        )  # fmt: skip
    else:
        _weigh(
            by_text, along, across, text_ids, image_ids,
            _values(work, n, m) + n, text_weights,
            (program - programs_of_images) * OF_TEXTS, m, n, work, n, m,
            ROW, WEIGH, OF_TEXTS, IMAGES, IMAGES,
        )  # fmt: skip


@triton.jit
def _sums(values, counted, count, SIZE: tl.constexpr):
    total = tl.zeros((SIZE,), tl.float32)
    number = tl.zeros((SIZE,), tl.float32)
    for start in range(0, count, SIZE):
        at = start + tl.arange(0, SIZE)
        total += tl.load(values + at, mask=at < count, other=0.0)
        number += tl.load(counted + at, mask=at < count, other=0.0)
    return tl.sum(total), tl.sum(number)


@triton.jit
def facts_of(values, n, m, MEAN: tl.constexpr, AT_ONCE: tl.constexpr):
    """Reduce the values of all queries, which `counted` follows: value, scale, ratio and number.

    A weight of an image is multiplied by the scale, one of a text by the scale and the ratio.
    """
    of_images, num_images = _sums(values, values + n + m, n, AT_ONCE)
    of_texts, num_texts = _sums(values + n, values + 2 * n + m, m, AT_ONCE)
    scale = 1.0
    ratio = 1.0
    if MEAN:
        scale = 0.5 / tl.maximum(num_images, 1.0)
        ratio = tl.maximum(num_images, 1.0) / tl.maximum(num_texts, 1.0)
    return scale * (of_images + ratio * of_texts), scale, ratio, num_images + num_texts


@triton.jit
def store_facts(value, facts, found, scale, ratio, number):
    tl.store(value, found)
    tl.store(facts, found)
    tl.store(facts + 1, scale)
    tl.store(facts + 2, scale * ratio)
    tl.store(facts + 3, number)


@triton.jit
def combine(
    work, image_weights, text_weights, value, facts, out, n, m,
    MEAN: tl.constexpr, FOLD: tl.constexpr, WEIGH: tl.constexpr, SIZE: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Add up the weights of both directions, [images, texts]; the first program writes the facts.

    The facts are the value, the factors that the images' and the texts' weights are still to be
    multiplied by (1 with FOLD), and the number of queries that have a positive.
    """
    found, scale, ratio, number = facts_of(_values(work, n, m), n, m, MEAN, AT_ONCE)
    if tl.program_id(0) + tl.program_id(1) == 0:
        if FOLD:
            store_facts(value, facts, found, 1.0, 1.0, number)
        else:
            store_facts(value, facts, found, scale, ratio, number)
    if WEIGH:
        i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
        t = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
        here = (i < n)[:, None] & (t < m)[None, :]
        by_image = tl.load(image_weights + i[:, None] * m + t[None, :], mask=here, other=0.0)
        there = (t < m)[:, None] & (i < n)[None, :]
        transposed = text_weights + t[:, None] * n + i[None, :]
        both = by_image + ratio * tl.trans(tl.load(transposed, mask=there, other=0.0))
        if FOLD:
            both *= scale
        tl.store(out + i[:, None] * m + t[None, :], both.to(out.dtype.element_ty), mask=here)
