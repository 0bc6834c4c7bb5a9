# mypy: ignore-errors
"""Triton kernel that collects the few scores of a tile that may be among the highest."""

from __future__ import annotations

import triton
import triton.language as tl

# Triton lays out a tile for each access, and moves it from one layout to the next through shared
# memory. If it cannot see which values are adjacent, it uses one layout for all accesses: that of
# the scores, which are adjacent in memory along the last axis here.
HIDDEN = ["query_stride", "candidate_stride", "count_stride", "pending_stride"]
NUMBERS = ["num_queries", "num_candidates", "first", "room"]


@triton.jit(do_not_specialize=HIDDEN + NUMBERS)
def collect(
    scores, query_stride, candidate_stride, num_queries, num_candidates, first,
    lowest, count, count_stride, pending, pending_stride, room,
    BY_QUERY: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Append the key of every score above the lowest of its query to the query's pending keys.

    `count` grows by all of them, but only those that fit the room are stored. Their order varies
    between runs, which is harmless, as keys carry their own order. With BY_QUERY a row in memory
    has the scores of a query, else those of a candidate.
    """
    across = tl.cdiv(num_candidates if BY_QUERY else num_queries, WIDTH)
    number = tl.program_id(0)
    row = (number // across * HEIGHT + tl.arange(0, HEIGHT))[:, None]
    column = (number % across * WIDTH + tl.arange(0, WIDTH))[None, :]
    if BY_QUERY:
        q, c = row.to(tl.int64), column.to(tl.int64)
    else:
        q, c = column.to(tl.int64), row.to(tl.int64)
    inside = (q < num_queries) & (c < num_candidates)
    s = tl.load(scores + q * query_stride + c * candidate_stride, mask=inside, other=-float("inf"))
    higher = s > tl.load(lowest + q, mask=q < num_queries, other=0.0)
    counter = count + tl.broadcast_to(q * count_stride, (HEIGHT, WIDTH))
    slot = tl.atomic_add(counter, 1, mask=higher, sem="relaxed")
    place = pending + q * pending_stride + slot
    tl.store(place, _key(s, first + c), mask=higher & (slot < room))


@triton.jit
def _key(scores, index):
    """Kernel version of `running.encode_keys`."""
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.int32, bitcast=True)  # -0.0 becomes 0.0
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (bits.to(tl.int64) << 32) | (0xFFFFFFFF - index)
