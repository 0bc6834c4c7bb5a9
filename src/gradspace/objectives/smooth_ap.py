"""SmoothAP, a differentiable average precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradspace.objectives.contract import Objective, Reduction
from gradspace.objectives.registry import loss
from gradspace.objectives.rows import positive_scores, reduce
from gradspace.objectives.statistics import PositiveScores, Statistic, Sum
from gradspace.parameters import Positive
from gradspace.scores.positives import Positives


@loss("smooth-ap", source="ICR eq. 5-8")
@dataclass(frozen=True)
class SmoothAP(Objective):
    """1 - AP, with AP the mean over positives i of R_P(i) / R(i), ranks smoothed by a sigmoid.

    R_P(i) = 1 + sum over the other positives of G(s_j - s_i), and R(i) = R_P(i) + that sum over the
    negatives, with G(x) = 1 / (1 + exp(-x / temperature)). Both count candidates that score higher
    than i (eq. 6 of the paper; the sign in the line after it is reversed).
    """

    temperature: Positive = 0.01
    reduction: ClassVar[Reduction] = "mean"

    @property
    def sharpness(self) -> float:
        return 1 / self.temperature

    def statistics(self, positive: PositiveScores) -> tuple[Statistic, ...]:
        return (Sum(self._above, positive.scores),)

    def _above(self, s: Tensor, p: Tensor) -> Tensor:
        """Smooth indicator G of s scoring higher than p."""
        return ((s - p) / self.temperature).sigmoid()

    def value(self, positive: PositiveScores, *statistics: Tensor) -> Tensor:
        (above_in_negatives,) = statistics
        rank_in_positives = self.rank_in_positives(positive)
        rank = rank_in_positives + above_in_negatives
        return 1 - positive.mean(rank_in_positives / rank)

    def rank_in_positives(self, positive: PositiveScores) -> Tensor:
        """Compute R_P, [queries, slots]."""
        return 1 + positive.sum_over_others(self._above)

    def num_contributing(
        self, weights: Tensor, scores: Tensor, positives: Positives, epsilon: float
    ) -> Tensor:
        """Count contributing triplets per positive, averaged by query (ICR eq. 13, COCOS C^q).

        A triplet (i, j) of a positive i and any other candidate j contributes if
        sim / R(i)^2 > epsilon, with sim = G (1 - G) / temperature (eq. 11 of the appendix).
        """
        positive = positive_scores(scores.detach(), positives)
        (above_in_negatives,) = (reduce(s, scores, positives) for s in self.statistics(positive))
        rank = self.rank_in_positives(positive) + above_in_negatives
        counts = torch.zeros_like(rank)
        for slot, p in enumerate(torch.split(positive.scores, 1, dim=1)):
            smooth = self._above(scores, p)
            similar = smooth * (1 - smooth) / self.temperature / rank[:, slot : slot + 1] ** 2
            itself = positives.index[:, slot : slot + 1]
            counts[:, slot] = (similar.scatter(1, itself, 0) > epsilon).sum(1)
        return positive.mean(counts)
