"""What an objective may ask about a query: its positives' scores and statistics of its negatives.

These few reductions are all that an execution has to know: whoever can compute them, from a matrix,
in tiles or over several processes, can execute every objective.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# Stands for minus infinity inside exponentials: finite, so that no gradient becomes inf - inf.
LOG_ZERO = -1e30


@dataclass(frozen=True)
class PositiveScores:
    """The scores of each query's positives, [queries, slots]; only `valid` slots are real."""

    scores: Tensor
    valid: Tensor
    num_negatives: Tensor
    """[queries, 1]: how many of the query's candidates are not its positives."""
    in_batch: Tensor
    """Every positive score of the batch, detached, ascending, +inf behind the last real one."""

    def sum(self, values: Tensor) -> Tensor:
        """Sum of [queries, slots] values over each query's positives: [queries]."""
        return values.where(self.valid, 0).sum(1)

    def mean(self, values: Tensor) -> Tensor:
        return self.sum(values) / self.valid.sum(1).clamp(min=1)

    @property
    def nothing(self) -> Tensor:
        """A `given` for terms that need only the score: one column of zeros."""
        return torch.zeros_like(self.scores[:, :1])


@dataclass(frozen=True)
class Hardest:
    """The highest negative score, [queries, 1]; -inf for a query that has no negative."""


@dataclass(frozen=True)
class Sum:
    """The sum over the negatives of `term(scores, given)`, one column per column of `given`.

    `term` is elementwise: it maps scores [queries, candidates] and one column [queries, 1] to
    [queries, candidates]. The result is [queries, columns of given].
    """

    term: Callable[[Tensor, Tensor], Tensor]
    given: Tensor


@dataclass(frozen=True)
class LogSumExp:
    """The logarithm of the sum over the negatives of exp(term(scores, given)), as `Sum`.

    A term at `LOG_ZERO` leaves its negative out; a sum with nothing in it is about LOG_ZERO.
    """

    term: Callable[[Tensor, Tensor], Tensor]
    given: Tensor


Statistic = Hardest | Sum | LogSumExp
