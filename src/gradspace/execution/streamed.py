"""Streamed execution in plain torch: tiles over both axes, each read once for both sides.

A tile yields the statistics of its rows and of its columns in one pass and is discarded; backward
recomputes it. For the hardest negative only the maximum and the small group of candidates that
contains it are tracked; recomputing that group then tells which candidate it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from gradspace.execution.block import (
    Block,
    Gradients,
    HardestNegatives,
    Result,
    Sides,
    Upstream,
    Wanted,
    is_shared,
)
from gradspace.execution.block_tiles import BlockTile, tiles_of
from gradspace.objectives.statistics import LOG_ZERO, Hardest, LogSumExp, Statistic, Sum
from gradspace.scores.positives import match_ids
from gradspace.scores.tiles import as_computed

BLOCK = {"cpu": 128}
"""Candidates per group of which only the maximum is tracked; 1,024 on devices other than the CPU,
where fewer and larger steps are faster."""
SAFE_RANGE = 60.0
"""Range of exponents that one common reference can serve in float32."""


_Asked = Sides[Sum | LogSumExp]


@dataclass(frozen=True)
class Streamed:
    """Streamed executor; `tile` is the side of a tile, chosen by device if None."""

    tile: int | None = None

    def forward(self, block: Block, wanted: Sequence[Wanted]) -> list[Result]:
        """Compute the statistics of the rows' and the columns' negatives."""
        totals = [
            Sides[_Accumulator](
                _accumulator(one.row, len(block.rows), block),
                _accumulator(one.column, len(block.columns), block),
            )
            for one in wanted
        ]
        for tile in tiles_of(block, self.tile):
            for one, total in zip(wanted, totals, strict=True):
                if not isinstance(one.either, Hardest):
                    _add(tile, cast(_Asked, one), total)
            for total in totals:  # last, since this overwrites the scores of the tile's positives
                if isinstance(total.either, _HardestSoFar):
                    _add_hardest(tile, total, block)
        return [
            Result(
                total.row.result(block) if total.row else None,
                total.column.result(block.transpose()) if total.column else None,
            )
            for total in totals
        ]

    def backward(self, block: Block, upstream: Sequence[Upstream]) -> Gradients:
        """Propagate the gradients of the sums to the embeddings and the given columns."""
        dtype = as_computed(block.rows[:0]).dtype
        gradients = Gradients(
            rows=torch.zeros_like(block.rows, dtype=dtype),
            columns=torch.zeros_like(block.columns, dtype=dtype),
            given=[
                Sides(_zeros_like(up.gradients.row), _zeros_like(up.gradients.column))
                for up in upstream
            ],
        )
        for tile in tiles_of(block, self.tile):
            weights = _weights(tile, upstream, gradients)
            gradients.rows[tile.rows].addmm_(weights, as_computed(block.columns[tile.columns]))
            gradients.columns[tile.columns].addmm_(weights.t(), as_computed(block.rows[tile.rows]))
        return gradients


# --- forward ------------------------------------------------------------------------------------


@dataclass
class _HardestSoFar:
    value: Tensor
    start: Tensor
    """First candidate of the group that contains the maximum."""
    index: Tensor | None = None
    """The candidate itself, known at once if the block is a single tile."""

    def update(self, queries: slice, best: Tensor, first: int, size: int) -> None:
        """Merge the maxima of the groups of a tile, [queries, groups]."""
        value, block = best.max(1)
        better = (value > self.value[queries]) | value.isnan()
        self.value[queries] = value.where(better, self.value[queries])
        self.start[queries] = (first + size * block).where(better, self.start[queries])

    def result(self, block: Block) -> HardestNegatives:
        if self.index is not None:
            return HardestNegatives(self.value, self.index.where(self.value != -torch.inf, -1))
        return HardestNegatives(self.value, _recover(block, self.start))


@dataclass
class _SumSoFar:
    total: Tensor

    def result(self, block: Block) -> Tensor:
        return self.total


@dataclass
class _LogSumExpSoFar:
    """Running log-sum-exp, kept as highest + log(total), which neither overflows nor underflows."""

    highest: Tensor
    total: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.total = torch.zeros_like(self.highest)

    def update(self, queries: slice, column: int, highest: Tensor, total: Tensor) -> None:
        before = self.highest[queries, column]
        both = torch.maximum(before, highest)
        kept = self.total[queries, column] * (before - both).exp()
        self.total[queries, column] = kept + total * (highest - both).exp()
        self.highest[queries, column] = both

    def result(self, block: Block) -> Tensor:
        return (self.highest + self.total.log()).clamp(min=LOG_ZERO)


_Accumulator = _HardestSoFar | _SumSoFar | _LogSumExpSoFar


def _accumulator(wanted: Statistic | None, num_queries: int, block: Block) -> _Accumulator | None:
    like = as_computed(block.rows[:0])
    match wanted:
        case None:
            return None
        case Hardest():
            value = like.new_full((num_queries,), -torch.inf)
            return _HardestSoFar(value, torch.zeros_like(value, dtype=torch.long))
        case Sum():
            return _SumSoFar(like.new_zeros(num_queries, wanted.given.shape[1]))
        case LogSumExp():
            return _LogSumExpSoFar(like.new_full((num_queries, wanted.given.shape[1]), LOG_ZERO))


def _add(tile: BlockTile, wanted: _Asked, total: Sides[_Accumulator]) -> None:
    """Add a tile to the sums of both sides; shared terms are computed once."""
    if is_shared(wanted):
        terms = _terms(tile, wanted.either, wanted.either.given[:1])
        if isinstance(wanted.either, LogSumExp) and _add_powers(tile, terms, total):
            return
        for side, queries, across in _sides(tile):
            _add_up(tile, terms, getattr(total, side), queries, 0, across)
        return
    for side, queries, across in _sides(tile):
        statistic = getattr(wanted, side)
        for c in range(statistic.given.shape[1] if statistic else 0):
            terms = _terms(tile, statistic, statistic.given[queries, c].unsqueeze(across))
            _add_up(tile, terms, getattr(total, side), queries, c, across)


def _sides(tile: BlockTile) -> tuple[tuple[str, slice, int], ...]:
    """Name of each side, its queries, and the dimension of the tile that it sums over."""
    return ("row", tile.rows, 1), ("column", tile.columns, 0)


def _terms(tile: BlockTile, wanted: Sum | LogSumExp, given: Tensor) -> Tensor:
    """Terms of a tile, in memory of their own that the caller may overwrite."""
    terms = wanted.term(tile.scores, given.detach())
    return terms.clone() if terms.data_ptr() == tile.scores.data_ptr() else terms


def _add_up(
    tile: BlockTile, terms: Tensor, total: _Accumulator, queries: slice, column: int, across: int
) -> None:
    if isinstance(total, _SumSoFar):
        total.total[queries, column] += tile.exclude(terms, 0).sum(across)
    elif isinstance(total, _LogSumExpSoFar):
        highest = tile.exclude(terms, LOG_ZERO).amax(across)
        powers = (terms - highest.unsqueeze(across)).exp_()
        total.update(queries, column, highest, powers.sum(across))


def _add_powers(tile: BlockTile, terms: Tensor, total: Sides[_Accumulator]) -> bool:
    """Add exponentials to both sides at once; return False if no one reference serves the tile."""
    highest = _common_reference(terms)
    if highest is None:
        return False
    powers = tile.exclude((terms - highest).exp_(), 0)
    for side, queries, across in _sides(tile):
        sums = powers.sum(across)
        getattr(total, side).update(queries, 0, highest.expand(len(sums)), sums)
    return True


def _common_reference(terms: Tensor) -> Tensor | None:
    """Highest exponent; None if another is so far below it that its exponential would vanish."""
    lowest, highest = terms.aminmax()
    if lowest < LOG_ZERO / 2:
        lowest = terms.where(terms > LOG_ZERO / 2, highest).amin()
    return highest if bool(highest - lowest < SAFE_RANGE) else None


def _add_hardest(tile: BlockTile, total: Sides[_Accumulator], block: Block) -> None:
    scores = tile.exclude(tile.scores, -torch.inf)
    if scores.shape == (len(block.rows), len(block.columns)):
        for side, across in ((total.row, 1), (total.column, 0)):
            if isinstance(side, _HardestSoFar):
                side.value, side.index = scores.max(across)
        return
    (height, width), size = scores.shape, BLOCK.get(scores.device.type, 1024)
    beyond = (0, -width % size, 0, -height % size)
    if any(beyond):
        scores = torch.nn.functional.pad(scores, beyond, value=-torch.inf)
    if isinstance(total.row, _HardestSoFar):
        best = scores.view(len(scores), -1, size).amax(2)[:height]
        total.row.update(tile.rows, best, tile.columns.start, size)
    if isinstance(total.column, _HardestSoFar):
        best = scores.view(-1, size, scores.shape[1]).amax(1)[:, :width]
        total.column.update(tile.columns, best.t(), tile.rows.start, size)


def _recover(block: Block, start: Tensor) -> Tensor:
    """Find the highest-scoring column of each row in the group that has it; -1 for none."""
    positives = match_ids(block.row_ids, block.column_ids)
    size = BLOCK.get(start.device.type, 1024)
    starts, counts = torch.unique(start, return_counts=True)
    found = torch.full_like(start, -1)
    parts = torch.split(start.argsort(stable=True), counts.tolist())
    for first, rows in zip(starts.tolist(), parts, strict=True):
        candidates = as_computed(block.columns[first : first + size])
        scores = as_computed(block.rows[rows]) @ candidates.t()
        own = positives.index[rows] - first
        inside = positives.valid[rows] & (own >= 0) & (own < len(candidates))
        row, slot = inside.nonzero(as_tuple=True)
        scores[row, own[row, slot]] = -torch.inf
        highest, at = scores.max(1)
        found[rows] = (at + first).where(highest != -torch.inf, -1)
    return found


# --- backward -----------------------------------------------------------------------------------


def _zeros_like(values: Tensor | None) -> Tensor | None:
    return None if values is None else torch.zeros_like(values)


def _weights(tile: BlockTile, upstream: Sequence[Upstream], into: Gradients) -> Tensor:
    """Weight of every score of a tile; the gradients of the given columns are added to `into`."""
    weights: Tensor | None = None
    for up, of_given in zip(upstream, into.given, strict=True):
        if is_shared(up.wanted):
            part = _shared_weights(tile, up)
            weights = part if weights is None else weights.add_(part)
            continue
        for side, queries, across in _sides(tile):
            gradient = getattr(up.gradients, side)
            for c in range(0 if gradient is None else gradient.shape[1]):
                part, of_column = _weights_of(tile, up, side, queries, c, across)
                weights = part if weights is None else weights.add_(part)
                if of_column is not None:
                    getattr(of_given, side)[queries, c] += of_column
    assert weights is not None
    return weights


def _shared_weights(tile: BlockTile, up: Upstream) -> Tensor:
    """Weights of a sum whose terms both sides share: one derivative serves both."""
    wanted = up.wanted.either
    with torch.enable_grad():
        scores = tile.scores.detach().requires_grad_()
        terms = wanted.term(scores, wanted.given[:1].detach())
    row, column = _over_tile(tile, up.gradients)
    if isinstance(wanted, LogSumExp):
        values = terms.detach()
        reference = _common_reference(values)
        of_row, of_column = _over_tile(tile, up.results)
        if reference is None:
            outer = (values - of_row).exp_().mul_(row)
            outer += (values - of_column).exp_().mul_(column)
        else:
            shares = row * (reference - of_row).exp() + column * (reference - of_column).exp()
            outer = (values - reference).exp_().mul_(shares)
    else:
        outer = (row + column).expand_as(terms).contiguous()
    (weights,) = torch.autograd.grad(terms, scores, tile.exclude(outer, 0))
    return weights


def _over_tile(tile: BlockTile, values: Sides[Tensor]) -> tuple[Tensor, Tensor]:
    """Slice one number per row and one per column, shaped to broadcast over a tile."""
    assert values.row is not None
    assert values.column is not None
    return values.row[tile.rows, :1], values.column[tile.columns, :1].t()


def _weights_of(
    tile: BlockTile, up: Upstream, side: str, queries: slice, c: int, across: int
) -> tuple[Tensor, Tensor | None]:
    """Weights of one sum: the derivative of the term times that of the sum."""
    wanted, outer = getattr(up.wanted, side), getattr(up.gradients, side)[queries, c]
    with torch.enable_grad():
        scores = tile.scores.detach().requires_grad_()
        given = wanted.given[queries, c].detach().unsqueeze(across)
        given.requires_grad_(wanted.given.requires_grad)
        terms = wanted.term(scores, given)
    outer = outer.unsqueeze(across)
    if isinstance(wanted, LogSumExp):
        total = getattr(up.results, side)[queries, c].unsqueeze(across)
        outer = (terms.detach() - total).exp_().mul_(outer)
    else:
        outer = outer.expand_as(terms).clone(memory_format=torch.contiguous_format)
    inputs = (scores, given) if given.requires_grad else (scores,)
    weights, *of_given = torch.autograd.grad(terms, inputs, tile.exclude(outer, 0))
    return weights, of_given[0].squeeze(across) if of_given else None
