"""Two-stage retrieval: embeddings propose candidates, and a pair scorer re-ranks them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradspace.scores.tiles import EmbeddingScores, MatrixScores, PairScores, blocks

ROWS_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class TwoStageScores:
    """Scores that rank a query's `top` proposals by pair score, and all others below as proposed.

    An image and a text may propose each other in one direction only, so each direction has its own
    matrix. In it only the order within a row is meaningful.
    """

    proposed: EmbeddingScores
    scorer: PairScores
    top: int
    proposal_weight: float = 0.0
    """Weight of the proposing score that is added to the pair score."""

    def __post_init__(self) -> None:
        if self.proposed.shape != self.scorer.shape:
            raise ValueError(
                f"proposals are for {list(self.proposed.shape)} images and texts, but the scorer "
                f"has {list(self.scorer.shape)}: both must be of the same split"
            )
        if self.top < 1:
            raise ValueError(f"top is {self.top}; use at least 1")

    @property
    def shape(self) -> tuple[int, int]:
        return self.scorer.shape

    @property
    def device(self) -> torch.device:
        return self.scorer.device

    def part(self, rows: slice, columns: Tensor) -> TwoStageScores:
        proposed = self.proposed.part(rows, columns.to(self.proposed.device))
        scorer = self.scorer.part(rows, columns)
        return TwoStageScores(proposed, scorer, self.top, self.proposal_weight)

    @cached_property
    def by_image(self) -> MatrixScores:
        """Scores of all texts for each image, [images, texts]."""
        return self._ordered(self.proposed, by_text=False)

    @cached_property
    def by_text(self) -> MatrixScores:
        """Scores of all images for each text, [texts, images]."""
        return self._ordered(self.proposed.transpose(), by_text=True)

    def _ordered(self, proposed: EmbeddingScores, by_text: bool) -> MatrixScores:
        num_queries, num_candidates = proposed.shape
        found = []
        for rows in blocks(num_queries, ROWS_AT_ONCE):
            tile = proposed.tile(rows, slice(0, num_candidates)).to(self.device)
            best = tile.topk(min(self.top, num_candidates), dim=1).indices
            query = torch.arange(rows.start, rows.stop, device=best.device)[:, None].expand_as(best)
            pair = (best, query) if by_text else (query, best)
            scores = self.scorer.pairs(*(side.flatten() for side in pair)).view_as(best)
            scores = scores + self.proposal_weight * tile.gather(1, best)
            behind = scores.amin(1, keepdim=True) - 1 - tile.amax(1, keepdim=True)
            found.append((tile + behind).scatter(1, best, scores))
            if self.scorer.progress:
                self.scorer.progress(rows.stop, num_queries)
        return MatrixScores(torch.cat(found))
