"""Retrieval in two stages: embeddings propose candidates, a model that scores pairs orders them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradspace.scores.tiles import EmbeddingScores, MatrixScores, PairScores, blocks

ROWS_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class TwoStageScores:
    """The `top` candidates that are proposed to a query, then all others as they were proposed.

    An image has other candidates than the texts that it is proposed to: there is a matrix for each
    direction, in which only the order within a row means something.
    """

    proposed: EmbeddingScores
    scorer: PairScores
    top: int
    proposal_weight: float = 0.0
    """What the score of the proposal counts in the order of those that are scored in pairs."""

    def __post_init__(self) -> None:
        if self.proposed.shape != self.scorer.shape:
            raise ValueError(
                f"proposals are for {list(self.proposed.shape)} images and texts, and the scorer "
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
        """[images, texts]"""
        return self._ordered(self.proposed, by_text=False)

    @cached_property
    def by_text(self) -> MatrixScores:
        """[texts, images]"""
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
