# mypy: ignore-errors
"""The Triton kernel of mining: of a tile of scores, the few that may be among the highest."""

from __future__ import annotations

import triton
import triton.language as tl

# Triton lays out a tile for each of its accesses, and moves it from one layout to the next through
# shared memory. Where it cannot see which numbers are neighbours, one layout serves all of them:
# that of the scores, whose neighbours in memory are those of the last axis here.
HIDDEN = ["query_stride", "candidate_stride", "count_stride", "pending_stride"]
NUMBERS = ["num_queries", "num_candidates", "first", "room"]


@triton.jit(do_not_specialize=HIDDEN + NUMBERS)
def collect(
    scores, query_stride, candidate_stride, num_queries, num_candidates, first,
    lowest, count, count_stride, pending, pending_stride, room,
    BY_QUERY: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Append the key of every score above the lowest of its query to what is pending for it.

    `count` grows by all of them; only those that there is room for are stored. Their order is that
    of the programs' luck, which is no matter: keys say themselves which is higher. BY_QUERY: a row
    in memory has the scores of a query, else those of a candidate.
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
    """As `running.encode_keys`."""
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.int32, bitcast=True)  # -0.0 becomes 0.0
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (bits.to(tl.int64) << 32) | (0xFFFFFFFF - index)
