"""The triplet loss over all negatives and over the hardest one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradspace.execution.statistics import Hardest, PositiveScores, Statistic, Sum
from gradspace.objectives.contract import Objective, Reduction
from gradspace.objectives.registry import loss
from gradspace.parameters import Real


@loss("triplet", source="ICR eq. 3")
@dataclass(frozen=True)
class Triplet(Objective):
    """Sum over all negatives of max(margin - p + s, 0), per positive."""

    margin: Real = 0.2
    reduction: ClassVar[Reduction] = "sum"

    def statistics(self, positive: PositiveScores) -> tuple[Statistic, ...]:
        return (Sum(lambda s, p: (s + (self.margin - p)).relu(), positive.scores),)

    def value(self, positive: PositiveScores, *statistics: Tensor) -> Tensor:
        (violations,) = statistics
        return positive.sum(violations)


@loss("triplet-hard", source="ICR eq. 1")
@dataclass(frozen=True)
class HardestTriplet(Objective):
    """max(margin - p + hardest negative, 0), per positive; the papers call it semi-hard.

    Relations: has the weights of constant/constant.
    """

    margin: Real = 0.2
    reduction: ClassVar[Reduction] = "sum"
    mined: ClassVar[bool] = True

    def statistics(self, positive: PositiveScores) -> tuple[Statistic, ...]:
        return (Hardest(),)

    def value(self, positive: PositiveScores, *statistics: Tensor) -> Tensor:
        (hardest,) = statistics
        return positive.sum((self.margin - positive.scores + hardest).relu())
