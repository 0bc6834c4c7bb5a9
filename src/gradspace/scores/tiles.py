"""Score matrices read tile by tile: held in memory, never built, or computed on access.

Rows are queries and columns candidates. Code that reads scores tile by tile works for
100,000 x 500,000 scores as for 5 x 5.
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
"""Share of a GPU's memory for a tile and what is computed from it."""
TILE_BYTES = 6 * 4
"""Bytes per score of a tile, including the intermediate copies of a formula."""

PAIRS_AT_ONCE = 512
BLOCK = (256, 512)
"""Numbers of images and of texts that a model scores against each other at a time."""


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
    """Inner products of two sets of embeddings, computed one tile at a time.

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
    """A model that scores pairs, such as `gradspace.models.PairScorer`."""

    def score(self, images: Tensor, texts: Tensor, lengths: Tensor) -> Tensor: ...

    def score_pairs(self, images: Tensor, texts: Tensor, lengths: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class PairScores:
    """Scores that a model gives to pairs, computed on access.

    Rows are images and columns texts. The words of all texts are in one list, without padding.
    """

    scorer: ScoresPairs
    images: Tensor
    """Regions of the images, [images, regions, width]."""
    words: Tensor
    """Words of all texts, [words, width]."""
    starts: Tensor
    """First word of each text, int64 [texts], on the CPU."""
    lengths: Tensor
    """Number of words of each text, int64 [texts], on the CPU."""
    device: torch.device
    """Device on which scores are computed; the parts may be on another."""
    progress: Callable[[int, int], None] | None = None
    """Called with the number of scores computed so far and their total."""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.images), len(self.lengths)

    def tile(self, rows: slice, columns: slice) -> Tensor:
        return self.block(torch.arange(self.shape[0])[rows], torch.arange(self.shape[1])[columns])

    @torch.no_grad()
    def block(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Score the chosen images against the chosen texts, [rows, columns]."""
        with evaluating(self.scorer):
            return self.scorer.score(self._images(rows), *self._texts(columns))

    @torch.no_grad()
    def pairs(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Score images with texts, pair by pair, [pairs]."""
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
        """Compute all scores once and hold them in memory."""
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
        """Words of the texts, padded with zeros to the longest, and their lengths."""
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
    """Convert values to the precision that scores are computed in, at least float32."""
    return values if values.dtype == torch.float64 else values.float()


def tile_size(device: torch.device) -> tuple[int, int]:
    """Rows and columns of a tile that fits a CPU's cache, or a small part of a GPU's memory."""
    if device.type != "cuda":
        return 512, 1024
    memory = torch.cuda.get_device_properties(device).total_memory
    side = int((memory * TILE_SHARE / TILE_BYTES) ** 0.5) // 256 * 256
    return min(max(side, 256), 8192), min(max(side, 256), 8192)


def blocks(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
