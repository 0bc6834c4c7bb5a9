"""Score matrices seen through tiles: a matrix in memory, or one that is never built.

Rows are queries and columns candidates. Whoever reads scores tile by tile works for
100,000 x 500,000 as for 5 x 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradspace.checks import check_embeddings, check_finite, check_scores

TILE_SHARE = 1 / 16
"""Of a GPU's memory, for a tile and what is computed from it."""
TILE_BYTES = 6 * 4
"""Per score of a tile: the copies that a formula makes on its way."""


@dataclass(frozen=True)
class MatrixScores:
    """A score matrix in memory."""

    matrix: Tensor

    def __post_init__(self) -> None:
        check_scores(self.matrix)
        check_finite("scores", self.matrix)

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape[0], self.matrix.shape[1]

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    def tile(self, rows: slice, columns: slice) -> Tensor:
        return as_computed(self.matrix[rows, columns])

    def part(self, rows: slice, columns: Tensor) -> MatrixScores:
        return MatrixScores(self.matrix[rows][:, columns])

    def transpose(self) -> MatrixScores:
        return MatrixScores(self.matrix.t())


@dataclass(frozen=True)
class EmbeddingScores:
    """The inner products of two sets of embeddings, computed a tile at a time."""

    queries: Tensor
    candidates: Tensor

    def __post_init__(self) -> None:
        check_embeddings(self.queries, self.candidates, names=("queries", "candidates"))

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.queries), len(self.candidates)

    @property
    def device(self) -> torch.device:
        return self.queries.device

    def tile(self, rows: slice, columns: slice) -> Tensor:
        return as_computed(self.queries[rows]) @ as_computed(self.candidates[columns]).t()

    def part(self, rows: slice, columns: Tensor) -> EmbeddingScores:
        return EmbeddingScores(self.queries[rows], self.candidates[columns])

    def transpose(self) -> EmbeddingScores:
        return EmbeddingScores(self.candidates, self.queries)


Scores = MatrixScores | EmbeddingScores


def as_scores(scores: Tensor | Scores) -> Scores:
    return MatrixScores(scores) if isinstance(scores, Tensor) else scores


def as_computed(values: Tensor) -> Tensor:
    """In the precision that scores are computed in: at least float32."""
    return values if values.dtype == torch.float64 else values.float()


def tile_size(device: torch.device) -> tuple[int, int]:
    """Rows and columns of a tile: it stays in a CPU's cache, or takes a small part of a GPU."""
    if device.type != "cuda":
        return 512, 1024
    memory = torch.cuda.get_device_properties(device).total_memory
    side = int((memory * TILE_SHARE / TILE_BYTES) ** 0.5) // 256 * 256
    return min(max(side, 256), 8192), min(max(side, 256), 8192)


def blocks(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
