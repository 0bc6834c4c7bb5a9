"""Score matrices seen through tiles: in memory, never built, or built when they are looked at.

Rows are queries and columns candidates. Whoever reads scores tile by tile works for
100,000 x 500,000 as for 5 x 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from gradspace.checks import check_embeddings, check_finite, check_scores
from gradspace.scores.evaluating import HasModes, evaluating

TILE_SHARE = 1 / 16
"""Of a GPU's memory, for a tile and what is computed from it."""
TILE_BYTES = 6 * 4
"""Per score of a tile: the copies that a formula makes on its way."""

PAIRS_AT_ONCE = 512
BLOCK = (256, 512)
"""Images and texts whose scores are asked of a model in one go."""


@dataclass(frozen=True, eq=False)
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


@dataclass(frozen=True, eq=False)
class EmbeddingScores:
    """The inner products of two sets of embeddings, computed a tile at a time.

    `normalize` scales every embedding to length 1 first, so that scores are cosines.
    """

    queries: Tensor
    candidates: Tensor
    normalize: InitVar[bool] = False

    def __post_init__(self, normalize: bool) -> None:
        check_embeddings(self.queries, self.candidates, names=("queries", "candidates"))
        if normalize:
            for side in ("queries", "candidates"):
                unit = torch.nn.functional.normalize(as_computed(getattr(self, side)), dim=1)
                object.__setattr__(self, side, unit)

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


class ScoresPairs(HasModes, Protocol):
    """A model that scores pairs: `gradspace.models.PairScorer`."""

    def score(self, images: Tensor, texts: Tensor, lengths: Tensor) -> Tensor: ...

    def score_pairs(self, images: Tensor, texts: Tensor, lengths: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class PairScores:
    """The scores that a model gives to pairs, each computed when it is asked for.

    Rows are images and columns texts. The words of all texts are in one list, without padding.
    """

    scorer: ScoresPairs
    images: Tensor
    """[images, regions, width]"""
    words: Tensor
    """[words of all texts, width]"""
    starts: Tensor
    """int64 [texts], on the CPU: where the words of a text begin"""
    lengths: Tensor
    """int64 [texts], on the CPU"""
    device: torch.device
    """Where scores are computed; the parts may be elsewhere."""
    progress: Callable[[int, int], None] | None = None
    """Called with how many scores are computed, and of how many."""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.images), len(self.lengths)

    def tile(self, rows: slice, columns: slice) -> Tensor:
        return self.block(torch.arange(self.shape[0])[rows], torch.arange(self.shape[1])[columns])

    @torch.no_grad()
    def block(self, rows: Tensor, columns: Tensor) -> Tensor:
        """[rows, columns], of chosen images with chosen texts."""
        with evaluating(self.scorer):
            return self.scorer.score(self._images(rows), *self._texts(columns))

    @torch.no_grad()
    def pairs(self, rows: Tensor, columns: Tensor) -> Tensor:
        """[pairs], of images with texts."""
        found = []
        with evaluating(self.scorer):
            for part in blocks(len(rows), PAIRS_AT_ONCE):
                texts, lengths = self._texts(columns[part])
                found.append(self.scorer.score_pairs(self._images(rows[part]), texts, lengths))
        return torch.cat(found)

    def part(self, rows: slice, columns: Tensor) -> PairScores:
        at = columns.cpu()
        return replace(
            self, images=self.images[rows], starts=self.starts[at], lengths=self.lengths[at]
        )

    def transpose(self) -> MatrixScores:
        return self.matrix().transpose()

    def matrix(self) -> MatrixScores:
        """All of them, in memory: each is computed once, however often it is looked at."""
        found, (num_rows, num_columns) = [], self.shape
        for rows in blocks(num_rows, BLOCK[0]):
            line = []
            for columns in blocks(num_columns, BLOCK[1]):
                line.append(self.tile(rows, columns))
                if self.progress:
                    above = rows.start * num_columns
                    done = above + (rows.stop - rows.start) * columns.stop
                    self.progress(done, num_rows * num_columns)
            found.append(torch.cat(line, 1))
        return MatrixScores(torch.cat(found))

    def _images(self, rows: Tensor) -> Tensor:
        return self.images[rows.to(self.images.device)].to(self.device)

    def _texts(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Padded with zeros to the longest, and the lengths."""
        at = columns.cpu()
        lengths = self.lengths[at]
        place = torch.arange(int(lengths.max()))
        present = place < lengths[:, None]
        index = (self.starts[at][:, None] + place).where(present, 0).to(self.words.device)
        texts = self.words[index].masked_fill(~present[..., None].to(self.words.device), 0)
        return texts.to(self.device), lengths


Scores = MatrixScores | EmbeddingScores | PairScores


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
