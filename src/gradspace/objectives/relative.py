"""Relative similarity of a pair to the others: the m+ and m- of GOAL's MS weights.

They are means over two sets (GOAL section 3.3, from multi-similarity's mining, with a slack
`epsilon`):

- for m+, the *other pairs'* positive scores of the batch that are <= n + epsilon;
- for m-, the query's negatives other than the hardest that are >= the smallest positive score of
  the batch - epsilon.

m+ needs only the vector of positive scores, sorted once, and m- only a count and a sum over the
row, so no set is ever built and both can be streamed. An empty set is neutral.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradspace.objectives.statistics import LOG_ZERO, LogSumExp, PositiveScores, Statistic, Sum
from gradspace.parameters import NonNegative, Positive


@dataclass(frozen=True)
class Relative(ABC):
    """One kind of mean over the relative sets; its fields are parameters of the objective."""

    epsilon: NonNegative = 0.1
    neutral: ClassVar[float]
    """Value of m for an empty set."""

    @abstractmethod
    def sum_of_negatives(self, threshold: Tensor) -> Statistic:
        """Statistic of the negatives at or above the threshold, including the hardest."""

    @abstractmethod
    def negative_mean(self, n: Tensor, total: Tensor, num_others: Tensor) -> Tensor:
        """Compute m- from that statistic, if there are negatives other than the hardest."""

    @abstractmethod
    def of_positive(self, r: Tensor) -> Tensor:
        """Function of a positive score that is averaged over the set of m+."""

    @abstractmethod
    def positive_mean(self, p: Tensor, mean: Tensor) -> Tensor:
        """Compute m+ from that average, if there are other positives in the set."""

    def statistics(self, positive: PositiveScores) -> tuple[Statistic, Statistic]:
        smallest = positive.smallest_in_batch - self.epsilon
        threshold = smallest.expand(len(positive.scores), 1)
        num_above = Sum(lambda s, least: (s >= least).to(s.dtype), threshold, shared=True)
        return num_above, self.sum_of_negatives(threshold)

    def m_negative(self, n: Tensor, num_above: Tensor, total: Tensor) -> Tensor:
        """Compute m-, [queries, 1]."""
        num_others = num_above - 1
        mean = self.negative_mean(n, total, num_others.clamp(min=1))
        return mean.where(num_others > 0, self.neutral)

    def m_positive(self, positive: PositiveScores, n: Tensor) -> Tensor:
        """Compute m+, [queries, slots]; in float64 internally, as sums over the batch are."""
        p, limit = positive.scores.double(), (n + self.epsilon).double()
        own = p <= limit
        total, count = positive.sum_in_batch(limit, self.of_positive)
        num_others = count - own.long()
        mean = (total - self.of_positive(p).where(own, 0)) / num_others.clamp(min=1)
        return self.positive_mean(p, mean).where(num_others > 0, self.neutral).to(n.dtype)


@dataclass(frozen=True)
class MeanDifference(Relative):
    """m+ = mean of p - r, m- = mean of n - r (GOAL eq. 13)."""

    neutral: ClassVar[float] = 0.0

    def sum_of_negatives(self, threshold: Tensor) -> Statistic:
        return Sum(lambda s, least: s.where(s >= least, 0), threshold, shared=True)

    def negative_mean(self, n: Tensor, total: Tensor, num_others: Tensor) -> Tensor:
        return n - (total - n) / num_others

    def of_positive(self, r: Tensor) -> Tensor:
        return r

    def positive_mean(self, p: Tensor, mean: Tensor) -> Tensor:
        return p - mean


@dataclass(frozen=True)
class MeanExponential(Relative):
    """m+ = mean of exp(alpha (p - r)), m- = mean of exp(-beta (n - r)) (GOAL eq. 12)."""

    neutral: ClassVar[float] = 1.0
    alpha: Positive = 2.0
    beta: Positive = 10.0

    def sum_of_negatives(self, threshold: Tensor) -> Statistic:
        return LogSumExp(
            lambda s, least: (self.beta * s).masked_fill(s < least, LOG_ZERO),
            threshold,
            shared=True,
        )

    def negative_mean(self, n: Tensor, total: Tensor, num_others: Tensor) -> Tensor:
        return torch.expm1(total - self.beta * n).clamp(min=0) / num_others

    def of_positive(self, r: Tensor) -> Tensor:
        return torch.exp(-self.alpha * r)

    def positive_mean(self, p: Tensor, mean: Tensor) -> Tensor:
        return torch.exp(self.alpha * p) * mean
