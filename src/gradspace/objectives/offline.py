"""Objectives with negatives that were mined offline from the whole training set (AOQ).

A pair of image I and caption T comes with a mined caption T- and a mined image I-; T~ is a caption
of I-, and I~ is the image of T-. The terms of both directions together are (equations of AOQ as in
its authors' code):

    w_t [g1 + s_on_t - p]+ + w_i [g1 + s_on_i - p]+       online, hardest negatives of the batch
    + [g2 + s(I, T-) - p]+ + [g2 + s(I-, T) - p]+         offline triplet
    + [g2 + s(I-, T-) - p]+ + [g2 + s(I~, T~) - p]+       offline quintuplet

The first term of every line belongs to the image's direction, the second to the text's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradspace.objectives.contract import Objective, Reduction
from gradspace.objectives.registry import loss
from gradspace.objectives.statistics import Hardest, OfflineScores, PositiveScores, Statistic
from gradspace.parameters import Flag, Positive, Real


@loss("offline-triplet", source="AOQ supplement 2020, OffTri")
@dataclass(frozen=True)
class OfflineTriplet(Objective):
    """Hardest triplet in the batch plus a triplet with the mined negative, [g2 + s(mined) - p]+.

    Relations: without mined negatives it is triplet-hard.
    """

    margin: Real = 0.2
    """Margin g1 of the online term."""
    offline_margin: Real = 0.0
    """Margin g2 of the offline terms."""
    reduction: ClassVar[Reduction] = "sum"
    mined: ClassVar[bool] = True
    uses_offline: ClassVar[bool] = True

    def statistics(self, positive: PositiveScores) -> tuple[Statistic, ...]:
        return (Hardest(),)

    def value(self, positive: PositiveScores, *statistics: Tensor) -> Tensor:
        (hardest,) = statistics
        online = positive.sum((self.margin - positive.scores + hardest).relu())
        offline = positive.offline
        if offline is None:
            return online
        return self._weight(offline, hardest[:, 0]) * online + self._offline_terms(offline)

    def _weight(self, offline: OfflineScores, hardest: Tensor) -> Tensor:
        return torch.ones_like(hardest)

    def _offline_terms(self, offline: OfflineScores) -> Tensor:
        return (self.offline_margin - offline.positive + offline.negative).relu()


@loss("offline-quintuplet", source="AOQ supplement 2020, OffQuin")
@dataclass(frozen=True)
class OfflineQuintuplet(OfflineTriplet):
    """offline-triplet plus [g2 + s - p]+ for a pair whose sides are both mined."""

    def _offline_terms(self, offline: OfflineScores) -> Tensor:
        pairs = (self.offline_margin - offline.positive + offline.pair).relu()
        return super()._offline_terms(offline) + pairs


@loss("adaptive-offline-quintuplet", source="AOQ supplement 2020, section 1")
@dataclass(frozen=True)
class AdaptiveOfflineQuintuplet(OfflineQuintuplet):
    """offline-quintuplet whose online term has the weight w = beta - (s(mined) - s_on) / alpha.

    The weight is a constant of the step and at least 0; the authors' code differentiates it
    (`detach=False`) and lets it become negative (`clamp=False`).
    """

    alpha: Positive = 0.3
    beta: Real = 1.5
    detach: Flag = True
    clamp: Flag = True
    is_loss: ClassVar[bool] = False

    def _weight(self, offline: OfflineScores, hardest: Tensor) -> Tensor:
        known = hardest.where(hardest.isfinite(), offline.negative)  # any number, if no negatives
        weight = self.beta - (offline.negative - known) / self.alpha
        weight = weight.clamp(min=0) if self.clamp else weight
        return weight.detach() if self.detach else weight
