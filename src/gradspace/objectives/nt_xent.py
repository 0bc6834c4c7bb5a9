"""NT-Xent, the softmax cross-entropy over a query's candidates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import softplus

from gradspace.objectives.contract import Objective, Reduction
from gradspace.objectives.registry import loss
from gradspace.objectives.statistics import LogSumExp, PositiveScores, Statistic
from gradspace.parameters import Positive


@loss("nt-xent", source="ICR eq. 4")
@dataclass(frozen=True)
class NTXent(Objective):
    """-log(exp(p/t) / (exp(p/t) + sum over negatives of exp(s/t))), mean over the positives.

    With several positives there is one term per positive, from which the other positives are left
    out. It is computed as softplus(logsumexp of the negatives - p/t), which is equal.
    """

    temperature: Positive = 0.1
    reduction: ClassVar[Reduction] = "mean"
    counted_over_all: ClassVar[bool] = True

    @property
    def sharpness(self) -> float:
        return 1 / self.temperature

    def statistics(self, positive: PositiveScores) -> tuple[Statistic, ...]:
        return (LogSumExp(lambda s, _: s / self.temperature, positive.nothing, shared=True),)

    def value(self, positive: PositiveScores, *statistics: Tensor) -> Tensor:
        (negatives,) = statistics
        return positive.mean(softplus(negatives - positive.scores / self.temperature))
