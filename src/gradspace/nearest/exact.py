"""Exact search over float16 vectors that stay where they are, on disk or in memory.

Products in float16, which torch computes at the speed of memory, tell which vectors may be among
the highest. Their error is bounded, so all other vectors can be excluded, and the few that remain
are scored in float64. The result is that of scoring every vector in float64.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradspace.nearest.running import RunningTop, decode_keys
from gradspace.scores.tiles import blocks

LONGEST = 1.01
"""Largest length of a vector: they are unit vectors, but rounded."""
MANY = 32
"""Number of queries from which it is faster to convert the vectors once for all of them."""
ROWS_AT_ONCE = 8192
SPARE = 32
"""Rows kept beyond k when many queries are answered at once."""

Neighbours = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Rows and their scores, highest first; equal scores in the order of rows."""


@torch.inference_mode()
def top_rows(
    vectors: Tensor, queries: Tensor, k: int, allowed: Tensor | None = None
) -> list[Neighbours]:
    """Find the k rows of float16 [n, d] that score highest with each query, float32 [q, d].

    Only rows in the mask `allowed`, bool [n], are found; if there are fewer than k, all of them.
    """
    num_allowed = len(vectors) if allowed is None else int(allowed.sum())
    k = min(k, num_allowed)
    if not k:
        return [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
    if len(queries) < MANY or num_allowed <= k + SPARE:
        return [_of_one(vectors, query, k, allowed) for query in queries]
    return _of_many(vectors, queries, k, allowed)


def _of_one(vectors: Tensor, query: Tensor, k: int, allowed: Tensor | None) -> Neighbours:
    rounded = query.half()
    scores = torch.mv(vectors, rounded)
    if allowed is not None:
        scores.masked_fill_(~allowed, -torch.inf)
    lowest = scores.topk(k, sorted=False).values.amin().float()
    error = _error_of_product(query, rounded)
    # An excluded row scores lower than k others by more than the errors of both.
    maybe = (scores >= lowest - 2 * error).nonzero().squeeze(1)
    if allowed is not None:
        maybe = maybe[allowed[maybe]]
    return highest(vectors, query, maybe, k)


def _error_of_product(query: Tensor, rounded: Tensor) -> float:
    """Bound the error of a product with the rounded query, summed in float32 and rounded."""
    of_query = float((query.double() - rounded.double()).norm())
    of_sum_and_result = float(query.norm()) * (len(query) * 2.0**-24 + 2.0**-11)
    return LONGEST * (of_query + of_sum_and_result) + 2.0**-24


def _of_many(vectors: Tensor, queries: Tensor, k: int, allowed: Tensor | None) -> list[Neighbours]:
    top = RunningTop(len(queries), k + SPARE, vectors.device)
    memory = torch.empty(ROWS_AT_ONCE, vectors.shape[1])
    for rows in blocks(len(vectors), ROWS_AT_ONCE):
        part = memory[: rows.stop - rows.start].copy_(vectors[rows])
        scores = queries @ part.t()
        if allowed is not None:
            scores.masked_fill_(~allowed[rows], -torch.inf)
        top.take(slice(0, len(queries)), scores, rows.start)
    kept, candidates = decode_keys(top.keys)
    error = LONGEST * queries.norm(dim=1) * queries.shape[1] * 2.0**-23
    found = []
    for query, scores, maybe, off in zip(queries, kept, candidates, error, strict=True):
        one = highest(vectors, query, maybe[scores > -torch.inf], k)
        if one[1][-1] < scores.amin() + off:  # a row that was not kept might score as high
            one = _of_one(vectors, query, k, allowed)
        found.append(one)
    return found


def highest(vectors: Tensor, query: Tensor, rows: Tensor, k: int) -> Neighbours:
    """Find the k highest-scoring of the given rows, in float64."""
    rows, wide = rows.sort().values, query.double()
    parts = [vectors[some].double() @ wide for some in torch.split(rows, ROWS_AT_ONCE)]
    scores, order = torch.cat(parts).sort(descending=True, stable=True)
    return rows[order[:k]].numpy(), scores[:k].float().numpy()
