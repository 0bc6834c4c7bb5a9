"""Triplet losses over all negatives, over the hardest one, and over the few hardest ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradspace.objectives.contract import Objective, Reduction
from gradspace.objectives.registry import loss
from gradspace.objectives.statistics import Hardest, LogSumExp, PositiveScores, Statistic, Sum
from gradspace.parameters import Positive, Real


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

    Relations: it has the weights of constant/constant.
    """

    margin: Real = 0.2
    reduction: ClassVar[Reduction] = "sum"
    mined: ClassVar[bool] = True

    def statistics(self, positive: PositiveScores) -> tuple[Statistic, ...]:
        return (Hardest(),)

    def value(self, positive: PositiveScores, *statistics: Tensor) -> Tensor:
        (hardest,) = statistics
        return positive.sum((self.margin - positive.scores + hardest).relu())


@loss("triplet-soft", source="gradspace 2026")
@dataclass(frozen=True)
class SoftHardestTriplet(Objective):
    """max(margin - p + t log(sum over negatives of exp(s/t)), 0), per positive.

    A softmax over the negatives shares out the weight that triplet-hard gives to the hardest one;
    the lower the temperature t, the fewer take part. A query that has reached its margin
    contributes nothing.

    Relations: triplet-hard is its limit for t -> 0. NT-Xent has the same shares but no margin.
    """

    margin: Real = 0.2
    temperature: Positive = 0.05
    reduction: ClassVar[Reduction] = "sum"

    def statistics(self, positive: PositiveScores) -> tuple[Statistic, ...]:
        return (LogSumExp(lambda s, _: s / self.temperature, positive.nothing, shared=True),)

    def value(self, positive: PositiveScores, *statistics: Tensor) -> Tensor:
        (negatives,) = statistics
        return positive.sum((self.margin - positive.scores + self.temperature * negatives).relu())
