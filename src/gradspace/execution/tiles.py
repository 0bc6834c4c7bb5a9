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
        tile = self.matrix[rows, columns]
        return tile if tile.dtype == torch.float64 else tile.float()

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
        queries, candidates = self.queries[rows], self.candidates[columns]
        if queries.dtype != torch.float64:
            queries, candidates = queries.float(), candidates.float()
        return queries @ candidates.t()

    def part(self, rows: slice, columns: Tensor) -> EmbeddingScores:
        return EmbeddingScores(self.queries[rows], self.candidates[columns])

    def transpose(self) -> EmbeddingScores:
        return EmbeddingScores(self.candidates, self.queries)


Scores = MatrixScores | EmbeddingScores


def as_scores(scores: Tensor | Scores) -> Scores:
    return MatrixScores(scores) if isinstance(scores, Tensor) else scores


def tile_size(device: torch.device) -> tuple[int, int]:
    """Rows and columns of a tile: it and one copy stay in a CPU's cache, or fill a GPU."""
    return (8192, 8192) if device.type == "cuda" else (512, 1024)


def blocks(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
