"""Ranks of the positives, without sorting and without a score matrix.

The rank of a positive among its query's negatives is 1 + the number of negatives that score higher
+ half of those that tie. With `sign` that is one sum per positive:

    higher + ties / 2 = (negatives + sum over negatives of sign(score - positive)) / 2

One pass over the tiles of the score matrix therefore ranks every positive of every row and, from
the same tile, of every column. Counting ties half gives a constant score matrix the rank of chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradspace.checks import check_same_shape
from gradspace.scores.positives import Positives, as_positives
from gradspace.scores.tiles import (
    EmbeddingScores,
    MatrixScores,
    PairScores,
    Scores,
    as_scores,
    blocks,
    tile_size,
)
from gradspace.scores.two_stage import TwoStageScores

MANY_SLOTS = 128
"""Positives per query beyond which sorting a tile is faster than comparing it with each."""


@dataclass(frozen=True)
class PositiveRanks:
    """Ranks of every positive of every query, [queries, slots], real where `valid`."""

    among_negatives: Tensor
    """Rank among the query's negatives only."""
    among_positives: Tensor
    """Rank among the query's other positives only."""
    valid: Tensor

    @property
    def overall(self) -> Tensor:
        return self.among_negatives + self.among_positives - 1

    @property
    def best(self) -> Tensor:
        """Rank of each query's best positive, [queries]; infinite if it has none.

        Positives of one query do not compete: two equal captions of one image, both on top, have
        rank 1.
        """
        return self.among_negatives.where(self.valid, torch.inf).amin(1)

    @property
    def finite_best(self) -> Tensor:
        """Rank of the best positive of each query that has one."""
        return self.best[self.valid.any(1)]

    def reorder(self, order: Tensor) -> PositiveRanks:
        """Restore the original order of queries: row i is query order[i]."""
        back = order.argsort()
        return PositiveRanks(
            self.among_negatives[back], self.among_positives[back], self.valid[back]
        )


def ranks(scores: Tensor | Scores, positives: Tensor | Positives) -> Tensor:
    """Rank each query's best positive, [queries]; infinite for a query without one.

    `scores[query, candidate]`, higher is better, is a matrix or `EmbeddingScores`, which is never
    built.

    Examples:
        >>> scores = torch.tensor([[0.9, 0.5, 0.1], [0.2, 0.2, 0.2]])
        >>> ranks(scores, torch.eye(2, 3, dtype=torch.bool))
        tensor([1., 2.], dtype=torch.float64)
    """
    return rank_rows(scores, positives).best


@torch.no_grad()
def rank_rows(scores: Tensor | Scores, positives: Tensor | Positives) -> PositiveRanks:
    """Rank the positives of every row."""
    source, rows, _ = _checked(scores, positives)
    p = _positive_scores(source, rows)
    signs, _ = _sum_of_signs(source, rows_p=p, columns_p=p[:0, :0])
    return _to_ranks(signs, p, rows)


@torch.no_grad()
def rank_both(
    scores: Tensor | Scores | TwoStageScores, positives: Tensor | Positives
) -> tuple[PositiveRanks, PositiveRanks]:
    """Rank the positives of every row and of every column, computing every score once."""
    if isinstance(scores, TwoStageScores):
        by_image = as_positives(positives)
        by_text = rank_rows(scores.by_text, by_image.transpose())
        return rank_rows(scores.by_image, by_image), by_text
    source, rows, order = _checked(scores, positives)
    columns = rows.transpose()
    p = _positive_scores(source, rows)
    p_columns = _by_column(p, rows, columns)
    by_row, by_column = _sum_of_signs(source, p, p_columns)
    return _to_ranks(by_row, p, rows), _to_ranks(by_column, p_columns, columns).reorder(order)


def _checked(
    scores: Tensor | Scores, positives: Tensor | Positives
) -> tuple[Scores, Positives, Tensor]:
    """Check the input and sort the candidates by query, to suit tiles; also return their order."""
    source = as_scores(scores)
    source = source.matrix() if isinstance(source, PairScores) else source
    rows = as_positives(positives).to(source.device)
    check_same_shape(source.shape, rows.shape)
    if not rows.valid.any():
        raise ValueError("no query has a positive, so there is nothing to rank; check the ids")
    order = torch.arange(source.shape[1], device=source.device)
    if isinstance(source, EmbeddingScores):
        first_query = rows.transpose().index[:, 0]
        if (first_query.diff() < 0).any():
            order = first_query.argsort(stable=True)
            source = source.part(slice(None), order)
            rows = rows.permute_candidates(order)
    return source, rows, order


def _positive_scores(source: Scores, positives: Positives) -> Tensor:
    """Read the positives' scores, [queries, slots], from the very tiles `_sum_of_signs` will use.

    The product of two vectors may round differently in matrix products of different shapes, which
    would break exact ties. So the tiles that contain positives are computed exactly as they will be
    later. They are few, because candidates are in the order of their queries.
    """
    if isinstance(source, MatrixScores):
        tile = source.matrix.gather(1, positives.index)
        return tile if tile.dtype == torch.float64 else tile.float()
    height, width = tile_size(source.device)
    query, candidate = positives.pairs()
    found = torch.empty(len(query), dtype=_dtype(source), device=source.device)
    stride = -(-source.shape[1] // width)
    tile_of_pair = (query // height) * stride + candidate // width
    for number in torch.unique(tile_of_pair).tolist():
        row, column = number // stride * height, number % stride * width
        tile = source.tile(slice(row, row + height), slice(column, column + width))
        inside = (tile_of_pair == number).nonzero().squeeze(1)
        found[inside] = tile[query[inside] - row, candidate[inside] - column]
    scores = torch.zeros(positives.index.shape, dtype=found.dtype, device=source.device)
    scores[positives.valid] = found
    return scores


def _by_column(p: Tensor, rows: Positives, columns: Positives) -> Tensor:
    """Rearrange the positives' scores from rows to columns."""
    _, candidate = rows.pairs()
    scores = torch.zeros(columns.index.shape, dtype=p.dtype, device=p.device)
    scores[columns.valid] = p[rows.valid][candidate.argsort(stable=True)]
    return scores


def _sum_of_signs(source: Scores, rows_p: Tensor, columns_p: Tensor) -> tuple[Tensor, Tensor]:
    """Sum sign(score - positive) over all candidates, for rows and for columns."""
    height, width = tile_size(source.device)
    by_row = torch.zeros_like(rows_p, dtype=torch.float64)
    by_column = torch.zeros_like(columns_p, dtype=torch.float64)
    for rows in blocks(source.shape[0], height):
        for columns in blocks(source.shape[1], width):
            tile = source.tile(rows, columns)
            work = torch.empty_like(tile)
            _add_signs(tile, rows_p[rows], by_row[rows], work)
            _add_signs(tile.t(), columns_p[columns], by_column[columns], work.t())
    return by_row, by_column


def _add_signs(tile: Tensor, p: Tensor, total: Tensor, work: Tensor) -> None:
    """Add the sum of sign(score - p) over each row of the tile, for every slot of p."""
    if p.shape[1] > MANY_SLOTS:
        total += _count_signs(tile, p)
        return
    for slot in range(p.shape[1]):
        total[:, slot] += torch.sub(tile, p[:, slot, None], out=work).sign_().sum(1)


def _count_signs(tile: Tensor, p: Tensor) -> Tensor:
    """Sum the signs by counting, [rows, slots]: higher scores minus lower ones."""
    ordered, p = tile.sort(1).values.contiguous(), p.contiguous()
    not_higher = torch.searchsorted(ordered, p, right=True)
    return tile.shape[1] - not_higher - torch.searchsorted(ordered, p)


def _to_ranks(signs: Tensor, p: Tensor, positives: Positives) -> PositiveRanks:
    valid = positives.valid
    num_positives = valid.sum(1, keepdim=True)
    padded = valid.shape[1] - num_positives
    between = (_count_signs(p.where(valid, torch.inf), p) - padded).double()
    num_negatives = positives.num_candidates - num_positives
    return PositiveRanks(
        among_negatives=1 + (num_negatives + signs - between) / 2,
        among_positives=1 + (num_positives - 1 + between) / 2,
        valid=valid,
    )


def _dtype(source: Scores) -> torch.dtype:
    return source.tile(slice(0, 1), slice(0, 1)).dtype
