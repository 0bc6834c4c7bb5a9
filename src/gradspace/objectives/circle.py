"""Circle loss, over all positives and negatives of a query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import softplus

from gradspace.objectives.contract import Objective, Reduction
from gradspace.objectives.registry import loss
from gradspace.objectives.statistics import LOG_ZERO, LogSumExp, PositiveScores, Statistic
from gradspace.parameters import Positive, Real


@loss("circle", source="Sun et al. 2020, eq. 6 and 8")
@dataclass(frozen=True)
class Circle(Objective):
    """log(1 + sum of exp(scale a_n (s - m)) * sum of exp(-scale a_p (p - 1 + m))).

    The sums run over the query's negatives s and positives p, m is the margin. The self-paced
    weights a_n = max(s + m, 0) and a_p = max(1 + m - p, 0) are held constant, as in the paper's
    gradients (its eq. 10), so the weights are not the derivative of the value.

    Relations: with one positive, one negative and margin 0 its weights are those of circle/linear
    with offset 1, times the scale.
    """

    scale: Positive = 64.0
    margin: Real = 0.25
    reduction: ClassVar[Reduction] = "mean"
    is_loss: ClassVar[bool] = False

    def statistics(self, positive: PositiveScores) -> tuple[Statistic, ...]:
        return (LogSumExp(lambda s, _: self._negative_logit(s), positive.nothing, shared=True),)

    def _negative_logit(self, s: Tensor) -> Tensor:
        pace = (s.detach() + self.margin).clamp(min=0).mul_(self.scale)
        return pace * (s - self.margin)

    def value(self, positive: PositiveScores, *statistics: Tensor) -> Tensor:
        (negatives,) = statistics
        p = positive.scores
        pace = self.scale * (1 + self.margin - p.detach()).clamp(min=0)
        logits = (-pace * (p - 1 + self.margin)).where(positive.valid, LOG_ZERO)
        return softplus(negatives.squeeze(1) + logits.logsumexp(1))
