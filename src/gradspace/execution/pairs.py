"""Scores of listed pairs: a mined objective weighs two pairs per row and needs no matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradspace.execution.triton import fused
from gradspace.scores.tiles import as_computed, blocks

PAIRS_AT_ONCE = 8192
"""Pairs gathered at a time on a GPU."""
VALUES_AT_ONCE = 1 << 16
"""Numbers gathered at a time on a CPU; they fit in the cache, which is up to seven times faster."""


def pair_scores(rows: Tensor, columns: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Compute the inner products of rows[row] and columns[column], [pairs], in at least float32."""
    apply: Any = _PairScores.apply
    scores: Tensor = apply(rows, columns, row, column)
    return scores


class _PairScores(torch.autograd.Function):
    """Gathers a bounded number of pairs at a time, so nothing of size pairs x width is kept."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, columns: Tensor, row: Tensor, column: Tensor) -> Tensor:
        ctx.save_for_backward(rows, columns, row, column)
        if fused.is_available(rows):
            return fused.or_else(
                lambda: fused.pair_scores(rows, columns, row, column),
                lambda: _pair_scores(rows, columns, row, column),
            )
        return _pair_scores(rows, columns, row, column)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        rows, columns, row, column = ctx.saved_tensors
        by_row, by_column, *_ = ctx.needs_input_grad
        return (
            weighted_sums(weights, columns, column, row, len(rows)) if by_row else None,
            weighted_sums(weights, rows, row, column, len(columns)) if by_column else None,
            None,
            None,
        )


def _pair_scores(rows: Tensor, columns: Tensor, row: Tensor, column: Tensor) -> Tensor:
    scores = [
        (as_computed(rows[row[part]]) * as_computed(columns[column[part]])).sum(1)
        for part in _parts(rows, len(row))
    ]
    return torch.cat(scores) if scores else as_computed(rows.new_zeros(0))


def _parts(of: Tensor, num_pairs: int) -> Iterator[slice]:
    """Split the pairs into slices that are gathered at a time."""
    at_once = PAIRS_AT_ONCE if of.is_cuda else VALUES_AT_ONCE // max(of.shape[1], 1)
    return blocks(num_pairs, max(at_once, 1))


def weighted_sums(weights: Tensor, of: Tensor, source: Tensor, target: Tensor, num: int) -> Tensor:
    """Sum weights[k] * of[source[k]] over the pairs k with target t into row t of [num, width].

    Pairs with the same target are added in a fixed order: equal inputs give identical bits.
    """
    if fused.is_available(of):
        return fused.or_else(
            lambda: fused.weighted_sums(weights, of, source, target, num),
            lambda: _weighted_sums(weights, of, source, target, num),
        )
    return _weighted_sums(weights, of, source, target, num)


def _weighted_sums(weights: Tensor, of: Tensor, source: Tensor, target: Tensor, num: int) -> Tensor:
    sums = torch.zeros(num, of.shape[1], dtype=as_computed(of[:0]).dtype, device=of.device)
    for part in _parts(of, len(weights)):
        terms = weights[part, None].to(sums.dtype) * of[source[part]]
        if of.is_cuda:
            sums.index_put_((target[part],), terms, accumulate=True)  # sorts, unlike index_add_
        else:
            sums.index_add_(0, target[part], terms)
    return sums.to(of.dtype)
