"""GOAL: objectives written in gradient space, a triplet weight times pair weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradspace.objectives.contract import Objective, Reduction
from gradspace.objectives.relative import Relative
from gradspace.objectives.statistics import Hardest, PositiveScores, Statistic


@dataclass(frozen=True)
class Goal(Objective):
    """T (P- n - P+ p) per positive pair, with T and P constants of the step (GOAL section 3).

    p is the score of the positive and n that of the query's hardest negative, so the gradient is
    -T P+ on the positive and T P- on the hardest negative: the objective *is* its weights, which
    need not be the derivative of any loss. A query with k positives has k triplets.

    Relations: constant/constant has the weights of the hardest-negative triplet loss; nca/constant
    those of hardest NT-Xent divided by its scale; circle/linear those of circle loss up to a
    constant; constant/sigmoid and constant/sigmoid-ms those of binomial deviance and
    multi-similarity where the gate is open (GOAL Table 1).
    """

    name: str
    parameters: Mapping[str, Any] = field(hash=False)
    triplet_weight: Callable[[Tensor, Tensor], Tensor] = field(repr=False, compare=False)
    pair_weight: Callable[..., tuple[Tensor, Tensor]] = field(repr=False, compare=False)
    relative: Relative | None = field(repr=False, compare=False)
    reduction: ClassVar[Reduction] = "sum"
    is_loss: ClassVar[bool] = False
    value_note: ClassVar[str] = (
        "GOAL has no loss, only a gradient: the loss shown is the linear form T (P- n - P+ p) with "
        "that gradient, which may be negative and need not fall; judge progress on dev"
    )
    mined: ClassVar[bool] = True

    def statistics(self, positive: PositiveScores) -> tuple[Statistic, ...]:
        relative = self.relative.statistics(positive) if self.relative else ()
        return (Hardest(), *relative)

    def value(self, positive: PositiveScores, *statistics: Tensor) -> Tensor:
        hardest, *of_relative = statistics
        exists = positive.num_negatives > 0
        n = hardest.where(exists, 0)
        p = positive.scores
        with torch.no_grad():
            m: tuple[Tensor, ...] = ()
            if self.relative:
                m_negative = self.relative.m_negative(n, *of_relative)
                m = (self.relative.m_positive(positive, n), m_negative)
            constant = p.detach(), n.detach()  # a weight may return one of them unchanged
            positive_weight, negative_weight = self._pair_weights(*constant, *m)
            weight = self.triplet_weight(*constant)
        return positive.sum((weight * (negative_weight * n - positive_weight * p)).where(exists, 0))

    def _pair_weights(self, *scores: Tensor) -> tuple[Tensor, Tensor]:
        """Compute P+ and P-, checking for two: a single tensor would unpack into its rows."""
        found: Any = self.pair_weight(*scores)
        if not isinstance(found, tuple | list) or len(found) != 2:
            got = len(found) if isinstance(found, tuple | list) else f"a {type(found).__name__}"
            raise ValueError(
                f"pair weight {self.name.partition('/')[2]!r} must return two tensors, the weight "
                f"of the positive and that of the negative, got {got}"
            )
        return found[0], found[1]
