"""Inputs of an objective per query: scores of its positives and statistics of its negatives.

These few reductions are all that an execution has to implement: code that can compute them, from a
matrix, in tiles or over several processes, can execute every objective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Term = Callable[[Tensor, Tensor], Tensor]

# Stands for minus infinity inside exponentials: finite, so that no gradient becomes inf - inf.
LOG_ZERO = -1e30


@dataclass(frozen=True)
class OfflineScores:
    """Scores of what was mined for the pair that a query is one side of, [queries] each (AOQ).

    `positive` is the score of the pair itself, `negative` that of the query with its mined
    negative, and `pair` that of a pair whose sides are both mined.
    """

    positive: Tensor
    negative: Tensor
    pair: Tensor


@dataclass(frozen=True)
class PositiveScores:
    """Scores of each query's positives, [queries, slots]; only `valid` slots are real."""

    scores: Tensor
    valid: Tensor
    num_negatives: Tensor
    """Number of each query's candidates that are not its positives, [queries, 1]."""
    in_batch: Tensor
    """All positive scores of the batch, detached, in any order, padded with any number of +inf.
    Objectives call `smallest_in_batch` and `sum_in_batch`, which an execution may override."""
    offline: OfflineScores | None = None
    """Scores of mined pairs, if negatives were mined offline."""

    def sum(self, values: Tensor) -> Tensor:
        """Sum of [queries, slots] values over each query's positives: [queries]."""
        return values.where(self.valid, 0).sum(1)

    def mean(self, values: Tensor) -> Tensor:
        return self.sum(values) / self.valid.sum(1).clamp(min=1)

    def sum_over_others(self, term: Term) -> Tensor:
        """Sum term(r, p), for each positive p, over the other positives r: [queries, slots]."""
        p = self.scores
        terms = term(p[:, None, :], p[:, :, None])
        itself = torch.eye(p.shape[1], dtype=torch.bool, device=p.device)
        return terms.where(self.valid[:, None, :] & ~itself, 0).sum(2)

    @property
    def smallest_in_batch(self) -> Tensor:
        """Smallest positive score of the batch, [1]."""
        return self.in_batch.amin(0, keepdim=True)

    def sum_in_batch(
        self, limit: Tensor, function: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Sum of function(r) over the batch's positive scores r <= limit, and their number.

        Both are [queries, 1], as `limit` is; the sum is in float64, taken from a running sum.
        """
        in_order = self.in_batch.double().sort().values
        count = torch.searchsorted(in_order, limit.double().flatten(), right=True).unsqueeze(1)
        running = torch.nn.functional.pad(function(in_order).cumsum(0), (1, 0))
        return running[count], count

    @property
    def nothing(self) -> Tensor:
        """Column of one repeated zero: the `given` of terms that need only the score (`shared`)."""
        return self.scores.new_zeros(()).expand(len(self.scores), 1)


@dataclass(frozen=True)
class Hardest:
    """Highest negative score, [queries, 1]; -inf for a query without negatives."""


@dataclass(frozen=True)
class Sum:
    """Sum over the negatives of `term(scores, given)`, one column per column of `given`.

    `term` is elementwise: it maps scores and one column of `given`, broadcast against each other,
    to one number per score. The result is [queries, columns of given].
    """

    term: Term
    given: Tensor
    shared: bool = False
    """Whether `given` is a single number without a gradient, equal for every query of both
    directions, so that their terms are equal too and need computing only once."""


@dataclass(frozen=True)
class LogSumExp:
    """Logarithm of the sum over the negatives of exp(term(scores, given)); arguments as in `Sum`.

    A term of `LOG_ZERO` leaves its negative out; an empty sum is about LOG_ZERO.
    """

    term: Term
    given: Tensor
    shared: bool = False


Statistic = Hardest | Sum | LogSumExp
