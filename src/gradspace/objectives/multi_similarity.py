"""Multi-similarity loss, with its mining, over all positives and negatives of a query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from gradspace.objectives.contract import Objective, Reduction
from gradspace.objectives.registry import loss
from gradspace.objectives.statistics import (
    LOG_ZERO,
    Hardest,
    LogSumExp,
    PositiveScores,
    Statistic,
)
from gradspace.parameters import NonNegative, Positive, Real


@loss("multi-similarity", source="Wang et al. 2019, eq. 11, 12 and 15")
@dataclass(frozen=True)
class MultiSimilarity(Objective):
    """log(1 + sum of exp(-alpha (p - base))) / alpha + log(1 + sum of exp(beta (s - base))) / beta.

    The sums run over the mined pairs: the query's positives below its hardest negative + epsilon
    and its negatives above its smallest positive - epsilon; with epsilon=None, over all pairs. The
    defaults are GOAL's, whose Table 1 relates this loss to constant/sigmoid-ms; the original paper
    has alpha 2, beta 50, base 1.
    """

    alpha: Positive = 2.0
    beta: Positive = 10.0
    base: Real = 0.5
    epsilon: NonNegative | None = 0.1
    reduction: ClassVar[Reduction] = "mean"

    def statistics(self, positive: PositiveScores) -> tuple[Statistic, ...]:
        if self.epsilon is None:
            return (
                LogSumExp(lambda s, _: self.beta * (s - self.base), positive.nothing, shared=True),
            )
        smallest = positive.scores.detach().where(positive.valid, torch.inf).amin(1, keepdim=True)
        return Hardest(), LogSumExp(self._mined_logit, smallest - self.epsilon)

    def _mined_logit(self, s: Tensor, least: Tensor) -> Tensor:
        return (self.beta * (s - self.base)).masked_fill(s <= least, LOG_ZERO)

    def value(self, positive: PositiveScores, *statistics: Tensor) -> Tensor:
        *hardest, negatives = statistics
        p = positive.scores
        selected = positive.valid
        if self.epsilon is not None:
            selected = selected & (p < hardest[0] + self.epsilon)
        logits = (-self.alpha * (p - self.base)).where(selected, LOG_ZERO)
        pull = softplus(logits.logsumexp(1)) / self.alpha
        return pull + softplus(negatives.squeeze(1)) / self.beta
