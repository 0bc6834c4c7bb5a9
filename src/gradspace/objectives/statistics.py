"""What an objective may ask about a query: its positives' scores and statistics of its negatives.

These few reductions are all that an execution has to know: whoever can compute them, from a matrix,
in tiles or over several processes, can execute every objective.
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
    """What was mined for the pair that a query is a side of, [queries] each (AOQ).

    `negative` scores the query with its mined negative, `pair` a pair of which both sides are
    mined, `positive` the pair itself.
    """

    positive: Tensor
    negative: Tensor
    pair: Tensor


@dataclass(frozen=True)
class PositiveScores:
    """The scores of each query's positives, [queries, slots]; only `valid` slots are real."""

    scores: Tensor
    valid: Tensor
    num_negatives: Tensor
    """[queries, 1]: how many of the query's candidates are not its positives."""
    in_batch: Tensor
    """Every positive score of the batch, detached, in any order, and any number of +inf. Objectives
    ask `smallest_in_batch` and `sum_in_batch`, which an execution may answer in another way."""
    offline: OfflineScores | None = None
    """Where negatives were mined offline."""

    def sum(self, values: Tensor) -> Tensor:
        """Sum of [queries, slots] values over each query's positives: [queries]."""
        return values.where(self.valid, 0).sum(1)

    def mean(self, values: Tensor) -> Tensor:
        return self.sum(values) / self.valid.sum(1).clamp(min=1)

    def sum_over_others(self, term: Term) -> Tensor:
        """[queries, slots]: for each positive p, term(r, p) over the other positives r."""
        p = self.scores
        terms = term(p[:, None, :], p[:, :, None])
        itself = torch.eye(p.shape[1], dtype=torch.bool, device=p.device)
        return terms.where(self.valid[:, None, :] & ~itself, 0).sum(2)

    @property
    def smallest_in_batch(self) -> Tensor:
        """[1]: the smallest positive score of the batch."""
        return self.in_batch.amin(0, keepdim=True)

    def sum_in_batch(
        self, limit: Tensor, function: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The sum of function(r) over the batch's positive scores r <= limit, and their number.

        Both are [queries, 1], as `limit` is; in float64, being differences of running sums.
        """
        in_order = self.in_batch.double().sort().values
        count = torch.searchsorted(in_order, limit.double().flatten(), right=True).unsqueeze(1)
        running = torch.nn.functional.pad(function(in_order).cumsum(0), (1, 0))
        return running[count], count

    @property
    def nothing(self) -> Tensor:
        """A `given` for terms that need only the score, and are `shared`: a column of one zero."""
        return self.scores.new_zeros(()).expand(len(self.scores), 1)


@dataclass(frozen=True)
class Hardest:
    """The highest negative score, [queries, 1]; -inf for a query that has no negative."""


@dataclass(frozen=True)
class Sum:
    """The sum over the negatives of `term(scores, given)`, one column per column of `given`.

    `term` is elementwise: it maps scores and one column of `given`, broadcast against each other,
    to one number per score. The result is [queries, columns of given].
    """

    term: Term
    given: Tensor
    shared: bool = False
    """`given` is one number without a gradient, the same for every query of both directions: then
    their terms are the same, and are computed once."""


@dataclass(frozen=True)
class LogSumExp:
    """The logarithm of the sum over the negatives of exp(term(scores, given)), as `Sum`.

    A term at `LOG_ZERO` leaves its negative out; a sum with nothing in it is about LOG_ZERO.
    """

    term: Term
    given: Tensor
    shared: bool = False


Statistic = Hardest | Sum | LogSumExp
