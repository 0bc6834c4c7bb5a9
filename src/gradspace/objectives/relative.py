"""Relative similarity: how a pair compares with the others, the m+ and m- of GOAL's MS weights.

The two sets (GOAL section 3.3, from multi-similarity's mining, with a slack `epsilon`):

- for m+, the *other pairs'* positive scores of the batch that are <= n + epsilon;
- for m-, the query's negatives other than the hardest that are >= the smallest positive score of
  the batch - epsilon.

m+ needs only the vector of positive scores, sorted once; m- only a count and a sum over the row: no
set is ever built, and both stream. An empty set is neutral.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
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
    """m of an empty set."""

    @abstractmethod
    def sum_of_negatives(self, threshold: Tensor) -> Statistic:
        """A statistic of the negatives at or above the threshold, the hardest included."""

    @abstractmethod
    def negative_mean(self, n: Tensor, total: Tensor, num_others: Tensor) -> Tensor:
        """m- from that statistic, where there are other negatives than the hardest."""

    @abstractmethod
    def positive_mean(self, p: Tensor, mean: Callable[[Callable[..., Tensor]], Tensor]) -> Tensor:
        """m+, where `mean(f)` is the mean of f over the other pairs' positive scores in the set."""

    def statistics(self, positive: PositiveScores) -> tuple[Statistic, Statistic]:
        smallest = positive.in_batch.amin(0, keepdim=True) - self.epsilon
        threshold = smallest.expand(len(positive.scores), 1)
        num_above = Sum(lambda s, least: (s >= least).to(s.dtype), threshold, shared=True)
        return num_above, self.sum_of_negatives(threshold)

    def m_negative(self, n: Tensor, num_above: Tensor, total: Tensor) -> Tensor:
        """m-, [queries, 1]."""
        num_others = num_above - 1
        mean = self.negative_mean(n, total, num_others.clamp(min=1))
        return mean.where(num_others > 0, self.neutral)

    def m_positive(self, positive: PositiveScores, n: Tensor) -> Tensor:
        """m+, [queries, slots]; in float64, because it is a difference of running sums."""
        p, in_batch = positive.scores.double(), positive.in_batch.double().sort().values
        limit = (n + self.epsilon).double()
        count = torch.searchsorted(in_batch, limit.flatten(), right=True).unsqueeze(1)
        own = p <= limit
        num_others = count - own.long()

        def mean_of_others(function: Callable[[Tensor], Tensor]) -> Tensor:
            running = torch.nn.functional.pad(function(in_batch).cumsum(0), (1, 0))
            return (running[count] - function(p).where(own, 0)) / num_others.clamp(min=1)

        mean = self.positive_mean(p, mean_of_others)
        return mean.where(num_others > 0, self.neutral).to(n.dtype)


@dataclass(frozen=True)
class MeanDifference(Relative):
    """m+ = mean of p - r, m- = mean of n - r (GOAL eq. 13)."""

    neutral: ClassVar[float] = 0.0

    def sum_of_negatives(self, threshold: Tensor) -> Statistic:
        return Sum(lambda s, least: s.where(s >= least, 0), threshold, shared=True)

    def negative_mean(self, n: Tensor, total: Tensor, num_others: Tensor) -> Tensor:
        return n - (total - n) / num_others

    def positive_mean(self, p: Tensor, mean: Callable[[Callable[..., Tensor]], Tensor]) -> Tensor:
        return p - mean(lambda r: r)


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

    def positive_mean(self, p: Tensor, mean: Callable[[Callable[..., Tensor]], Tensor]) -> Tensor:
        return torch.exp(self.alpha * p) * mean(lambda r: torch.exp(-self.alpha * r))
