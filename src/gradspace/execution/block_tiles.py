"""Tiles of a block of scores: computed, read once, and overwritten."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradspace.execution.block import Block
from gradspace.scores.positives import match_ids
from gradspace.scores.tiles import as_computed, blocks, tile_size


def tiles_of(block: Block, side: int | None) -> Iterator[BlockTile]:
    """Compute the tiles of a block one by one, reusing the same memory."""
    height, width = (side, side) if side else tile_size(block.rows.device)
    height, width = min(height, len(block.rows)), min(width, len(block.columns))
    memory = as_computed(block.rows.new_empty(height * width))
    excluded = _PositivePairs(block, height, width)
    for rows in blocks(len(block.rows), height):
        for columns in blocks(len(block.columns), width):
            shape = (rows.stop - rows.start, columns.stop - columns.start)
            scores = memory[: shape[0] * shape[1]].view(shape)
            _multiply(block.rows[rows], block.columns[columns].t(), scores)
            yield BlockTile(rows, columns, scores, excluded.within(rows, columns))


def _multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Multiply into `out` in float32, which represents products of 16-bit numbers exactly."""
    if left.is_cuda and left.element_size() == 2:
        torch.mm(left, right, out_dtype=out.dtype, out=out)
    else:
        torch.mm(as_computed(left), as_computed(right), out=out)


@dataclass(frozen=True)
class BlockTile:
    """Scores of a range of rows with a range of columns."""

    rows: slice
    columns: slice
    scores: Tensor
    excluded: tuple[Tensor, Tensor] | None
    """Positions in the tile that are not negatives; None if all are."""

    def exclude(self, values: Tensor, value: float) -> Tensor:
        """Overwrite the values of pairs that are not negatives."""
        if self.excluded is not None:
            values[self.excluded] = value
        return values


class _PositivePairs:
    """Positive pairs of a block, sorted by tile."""

    def __init__(self, block: Block, height: int, width: int) -> None:
        row, column = match_ids(block.row_ids, block.column_ids).pairs()
        self.height, self.width = height, width
        self.num_across = -(-len(block.columns) // width)
        tile = row // height * self.num_across + column // width
        order = tile.argsort(stable=True)
        self.row, self.column = row[order] % height, column[order] % width
        num_tiles = -(-len(block.rows) // height) * self.num_across
        ends = torch.bincount(tile, minlength=num_tiles).cumsum(0)
        self.ends = [0, *ends.tolist()]

    def within(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor] | None:
        tile = rows.start // self.height * self.num_across + columns.start // self.width
        pairs = slice(self.ends[tile], self.ends[tile + 1])
        if pairs.start == pairs.stop:
            return None
        return self.row[pairs], self.column[pairs]
