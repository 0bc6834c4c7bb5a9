"""SigLIP's sigmoid loss, which classifies every pair independently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import softplus

from gradspace.objectives.contract import Objective, Reduction
from gradspace.objectives.registry import loss
from gradspace.objectives.statistics import PositiveScores, Statistic, Sum
from gradspace.parameters import Positive, Real


@loss("siglip", source="Zhai et al. 2023, section 3.2")
@dataclass(frozen=True)
class SigLIP(Objective):
    """Sum over candidates of log(1 + exp(-z (scale s + bias))), z = 1 for positives, else -1.

    Scale and bias are the published initial values. Every pair occurs in a row of both directions;
    with the reduction "mean", the average of the two, the loss is the published one.
    """

    scale: Positive = 10.0
    bias: Real = -10.0
    reduction: ClassVar[Reduction] = "mean"

    def statistics(self, positive: PositiveScores) -> tuple[Statistic, ...]:
        return (
            Sum(lambda s, _: softplus(self.scale * s + self.bias), positive.nothing, shared=True),
        )

    def value(self, positive: PositiveScores, *statistics: Tensor) -> Tensor:
        (negatives,) = statistics
        pull = positive.sum(softplus(-(self.scale * positive.scores + self.bias)))
        return pull + negatives.squeeze(1)
