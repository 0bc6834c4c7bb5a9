"""A smooth family of gradient-space objectives to search in; GOAL's cells are points of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from gradspace.objectives.contract import Objective, Reduction
from gradspace.objectives.goal import Goal
from gradspace.objectives.registry import loss
from gradspace.objectives.relative import MeanExponential
from gradspace.objectives.statistics import PositiveScores, Statistic
from gradspace.parameters import NonNegative, Positive, Real

ALMOST_ONE = 1 - 1e-6


@loss("smooth", source="gradspace 2026")
@dataclass(frozen=True)
class Smooth(Objective):
    """T (P- n - P+ p) with T and P from one smooth family, for a search in gradient space.

    p is the score of a positive and n that of the query's hardest negative; T, P+ and P- are
    constants of the step, as in GOAL:

        T  = sigmoid(p1 p + n1 n + p2 p^2 + n2 n^2 + bias)
        P+ = pull (1 - gain_p d+ / exponent)^exponent  ramp(slope_p, base_p + shift d+ - p)
        P- = push (1 + gain_n d- / exponent)^exponent  ramp(slope_n, n - base_n - shift d-)

    ramp(k, x) is the mean of sigmoid(k y) over x - width <= y <= x, and sigmoid(k x) for width 0.
    It rises from 0 at x = 0 to 1 at x = width; the smaller k, the rounder its corners. d+ and d-
    compare the pair with the others of the batch, as GOAL's m+ and m- do and over the same sets:
    d+ = log(m+) / mean_p and d- = -log(m-) / mean_n, where m+ and m- are the mean exponentials of
    equation 12 with slopes mean_p and mean_n. As the slopes go to 0, d+ becomes the mean of p - r
    and d- that of n - r. They are not computed if gain_p, gain_n and shift are all 0.

    Relations: the defaults give nca/sigmoid. Every GOAL cell is a point or a limit of the family;
    `tests/objectives/test_smooth.py` lists them.
    """

    p1: Real = -10.0
    n1: Real = 10.0
    p2: Real = 0.0
    n2: Real = 0.0
    bias: Real = 0.0
    pull: Positive = 1.0
    push: Positive = 1.0
    slope_p: Positive = 2.0
    base_p: Real = 0.5
    slope_n: Positive = 10.0
    base_n: Real = 0.5
    width: NonNegative = 0.0
    gain_p: NonNegative = 0.0
    gain_n: NonNegative = 0.0
    exponent: Positive = 1.0
    shift: NonNegative = 0.0
    mean_p: Positive = 2.0
    mean_n: Positive = 10.0
    epsilon: NonNegative = 0.1
    reduction: ClassVar[Reduction] = Goal.reduction
    is_loss: ClassVar[bool] = Goal.is_loss
    value_note: ClassVar[str] = Goal.value_note
    mined: ClassVar[bool] = True

    def statistics(self, positive: PositiveScores) -> tuple[Statistic, ...]:
        return self.goal.statistics(positive)

    def value(self, positive: PositiveScores, *statistics: Tensor) -> Tensor:
        return self.goal.value(positive, *statistics)

    @cached_property
    def goal(self) -> Goal:
        """It as a GOAL objective, with T and P of its own."""
        compares = bool(self.gain_p or self.gain_n or self.shift)
        relative = MeanExponential(self.epsilon, self.mean_p, self.mean_n) if compares else None
        return Goal(self.name, {}, self.triplet_weight, self.pair_weight, relative)

    def triplet_weight(self, p: Tensor, n: Tensor) -> Tensor:
        linear = self.p1 * p + self.n1 * n + self.bias
        return torch.sigmoid(linear + self.p2 * p * p + self.n2 * n * n)

    def pair_weight(
        self, p: Tensor, n: Tensor, m_p: Tensor | None = None, m_n: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if m_p is None or m_n is None:
            return (
                self.pull * self._ramp(self.slope_p, self.base_p - p),
                self.push * self._ramp(self.slope_n, n - self.base_n),
            )
        d_p, d_n = torch.log(m_p) / self.mean_p, -torch.log(m_n) / self.mean_n
        of_p = self._power(-self.gain_p * d_p)
        of_n = self._power(self.gain_n * d_n)
        return (
            self.pull * of_p * self._ramp(self.slope_p, self.base_p + self.shift * d_p - p),
            self.push * of_n * self._ramp(self.slope_n, n - self.base_n - self.shift * d_n),
        )

    def _ramp(self, slope: float, x: Tensor) -> Tensor:
        if self.width == 0:
            return torch.sigmoid(slope * x)
        span = slope * self.width
        return (_softplus(slope * x) - _softplus(slope * x - span)) / span

    def _power(self, x: Tensor) -> Tensor:
        """Compute (1 + x / exponent)^exponent, or 0 where the bracket is negative."""
        inside = x / self.exponent
        power = torch.exp(self.exponent * torch.log1p(inside.clamp(min=-ALMOST_ONE)))
        return power.where(inside > -ALMOST_ONE, 0)


def _softplus(x: Tensor) -> Tensor:
    return x.relu() + torch.log1p(torch.exp(-x.abs()))
