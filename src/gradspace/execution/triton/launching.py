"""Launching of Triton kernels: tiles that the device can hold, and inputs in the right layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from gradspace.execution.block import Block
from gradspace.scores.tiles import blocks

T = TypeVar("T")


def is_full_float32(values: Tensor) -> bool:
    return values.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32


class Tile(NamedTuple):
    """Parameters a kernel is compiled with: tile shape, depth of a step, and Triton's knobs."""

    height: int
    width: int
    depth: int
    stages: int
    warps: int
    registers: int | None = None


# Fastest first on an H200, where three tiles of 168 registers per thread, or two tiles of weights,
# share a multiprocessor; the first one that fits the device is used.
STATISTICS = (Tile(128, 128, 64, 2, 4, 168),)
INDEXED = (Tile(128, 128, 64, 3, 8),)
WEIGHTS = (Tile(128, 128, 64, 3, 4), Tile(128, 128, 64, 2, 8))
FLOAT32 = (Tile(128, 128, 32, 3, 8),)
SMALLEST = Tile(64, 64, 32, 2, 4)
RECOVER = Tile(64, 0, 64, 3, 4)

_too_large: set[tuple[Tile, Any]] = set()


def on_a_tile_that_fits(tiles: Sequence[Tile], what: Any, run: Callable[[Tile], T]) -> T:
    from triton.runtime.errors import OutOfResources

    for tile in tiles:
        if (tile, what) not in _too_large:
            try:
                return run(tile)
            except OutOfResources:
                _too_large.add((tile, what))
    return run(SMALLEST)


class Inputs:
    """A block in the layout that the kernels read: aligned rows and 32-bit ids."""

    def __init__(self, rows: Tensor, columns: Tensor, row_ids: Tensor, column_ids: Tensor) -> None:
        self.rows, self.columns = _aligned(rows), _aligned(columns)
        self.row_ids, self.column_ids = row_ids, column_ids
        self.n, self.m, self.width = len(rows), len(columns), rows.shape[1]
        self.precision = "ieee" if is_full_float32(rows) else "tf32"

    @staticmethod
    def of(block: Block) -> Inputs:
        return Inputs(block.rows, block.columns, *_short_ids(block.row_ids, block.column_ids))

    def tiles(self, wanted: Sequence[Tile]) -> Sequence[Tile]:
        return FLOAT32 if self.rows.dtype == torch.float32 else wanted

    def chunks(self, height: int, bytes_per_row: int, memory: int) -> list[slice]:
        """Split the rows into chunks of whole tiles that need at most `memory` bytes each."""
        size = memory // bytes_per_row // height * height
        return list(blocks(self.n, max(size, height)))

    def launch(self, kernel: Any, tile: Tile, rows: slice, *values: Any, **constants: Any) -> None:
        """Run a kernel over the tiles of a range of rows and all columns."""
        from triton.tools.tensor_descriptor import TensorDescriptor

        part = self.rows[rows]
        num_tiles = ceil(len(part), tile.height) * ceil(self.m, tile.width)
        kernel[(num_tiles,)](
            TensorDescriptor.from_tensor(part, [tile.height, tile.depth]),
            TensorDescriptor.from_tensor(self.columns, [tile.width, tile.depth]),
            self.row_ids[rows],
            self.column_ids,
            len(part),
            self.m,
            part.shape[1],
            *values,
            **constants,
            HEIGHT=tile.height,
            WIDTH=tile.width,
            DEPTH=tile.depth,
            PRECISION=self.precision,
            EVEN=len(part) % tile.height == self.m % tile.width == 0,
            num_stages=tile.stages,
            num_warps=tile.warps,
            maxnreg=tile.registers,
        )

    def transpose(self) -> Inputs:
        other = copy(self)
        other.rows, other.columns = self.columns, self.rows
        other.row_ids, other.column_ids = self.column_ids, self.row_ids
        other.n, other.m = self.m, self.n
        return other

    @cached_property
    def squares(self) -> Tensor:
        """Squared lengths of the longest row and of the longest column."""
        from gradspace.execution.triton import kernels

        squares = torch.zeros(2, dtype=torch.float32, device=self.rows.device)
        for k, vectors in enumerate((self.rows, self.columns)):
            kernels.longest[(ceil(len(vectors), 16),)](
                *(vectors, squares[k:], *vectors.shape), ROWS=16, WIDTH=64
            )
        return squares

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.rows.device)


def ceil(count: int, size: int) -> int:
    return -(-count // size)


def _aligned(embeddings: Tensor) -> Tensor:
    """Pad the rows to multiples of 16 bytes, as tensor descriptors require."""
    beyond = -embeddings.shape[1] % (16 // embeddings.element_size())
    if beyond:
        embeddings = torch.nn.functional.pad(embeddings, (0, beyond))
    return embeddings.contiguous()


def _short_ids(row_ids: Tensor, column_ids: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.cat([row_ids, column_ids])
    if int(both.abs().max()) >= 1 << 31:
        both = torch.unique(both, return_inverse=True)[1]
    row, column = torch.split(both.int(), [len(row_ids), len(column_ids)])
    return row, column.clone()  # aligned
