"""Binomial deviance loss over all pairs of a query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import softplus

from gradspace.objectives.contract import Objective, Reduction
from gradspace.objectives.registry import loss
from gradspace.objectives.statistics import PositiveScores, Statistic, Sum
from gradspace.parameters import Positive, Real


@loss("binomial-deviance", source="Yi et al. 2014, eq. 10; GOAL eq. 11")
@dataclass(frozen=True)
class BinomialDeviance(Objective):
    """Mean of log(1 + exp(-alpha (p - b))) / alpha + mean of log(1 + exp(beta (s - b))) / beta.

    The means run over the query's positives p and negatives s; b is the base. Dividing by alpha and
    beta, as in multi-similarity, makes the weights the sigmoids of GOAL eq. 11.

    Relations: with one positive and one negative it has the weights of constant/sigmoid.
    """

    alpha: Positive = 2.0
    beta: Positive = 10.0
    base: Real = 0.5
    reduction: ClassVar[Reduction] = "mean"

    def statistics(self, positive: PositiveScores) -> tuple[Statistic, ...]:
        return (
            Sum(lambda s, _: softplus(self.beta * (s - self.base)), positive.nothing, shared=True),
        )

    def value(self, positive: PositiveScores, *statistics: Tensor) -> Tensor:
        (push,) = statistics
        pull = positive.mean(softplus(self.alpha * (self.base - positive.scores)))
        push_mean = push / positive.num_negatives.clamp(min=1)
        return pull / self.alpha + push_mean.squeeze(1) / self.beta
