"""What an objective may ask about a query: its positives' scores and statistics of its negatives.

These few reductions are all that an execution has to know: whoever can compute them, from a matrix,
in tiles or over several processes, can execute every objective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

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
    """Every positive score of the batch, detached, in any order, and any number of +inf."""
    offline: OfflineScores | None = None
    """Where negatives were mined offline."""

    def sum(self, values: Tensor) -> Tensor:
        """Sum of [queries, slots] values over each query's positives: [queries]."""
        return values.where(self.valid, 0).sum(1)

    def mean(self, values: Tensor) -> Tensor:
        return self.sum(values) / self.valid.sum(1).clamp(min=1)

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

    term: Callable[[Tensor, Tensor], Tensor]
    given: Tensor
    shared: bool = False
    """`given` is one number without a gradient, the same for every query of both directions: then
    their terms are the same, and are computed once."""


@dataclass(frozen=True)
class LogSumExp:
    """The logarithm of the sum over the negatives of exp(term(scores, given)), as `Sum`.

    A term at `LOG_ZERO` leaves its negative out; a sum with nothing in it is about LOG_ZERO.
    """

    term: Callable[[Tensor, Tensor], Tensor]
    given: Tensor
    shared: bool = False


Statistic = Hardest | Sum | LogSumExp
