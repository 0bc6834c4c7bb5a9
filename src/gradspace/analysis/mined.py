"""COCOS of mined negatives: how many contribute in addition to those of the batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradspace.analysis.weights import score_weights
from gradspace.loss.mined import MinedScores, Offline
from gradspace.loss.pairing import Pairing, QueryRows
from gradspace.objectives import Objective
from gradspace.objectives.statistics import OfflineScores
from gradspace.scores.positives import Positives


@dataclass(frozen=True)
class OfflineCocos:
    """Counts of mined negatives in one direction, as means over the queries."""

    per_query: float
    """Mined negatives of a query with a |weight| above epsilon."""
    weight: float
    """Summed |weight| of these negatives."""
    pairs: float
    """Contributing pairs whose sides are both mined; 0 for objectives without such terms."""


def offline_cocos(
    objective: Objective,
    images: Tensor,
    texts: Tensor,
    ids: tuple[Tensor, Tensor],
    offline: Offline,
    epsilon: float = 0.01,
) -> tuple[OfflineCocos, OfflineCocos]:
    """Count image to text and text to image, for pairs with the `ids` of images and texts."""
    mined = offline.scores(images, texts, objective.uses_offline)
    return offline_cocos_of_scores(objective, images @ texts.t(), ids, mined, epsilon)


def offline_cocos_of_scores(
    objective: Objective,
    scores: Tensor,
    ids: tuple[Tensor, Tensor],
    mined: MinedScores,
    epsilon: float = 0.01,
) -> tuple[OfflineCocos, OfflineCocos]:
    """Count both directions of scores[image, text] with the scores of mined negatives."""
    of_images, of_texts = Pairing(*ids).rows(scores, mined)
    return (
        _count(objective, of_images, scores.shape[1], epsilon),
        _count(objective, of_texts, scores.shape[0], epsilon),
    )


def _count(objective: Objective, rows: QueryRows, in_batch: int, epsilon: float) -> OfflineCocos:
    """Count mined negatives, which follow the first `in_batch` candidates of each row."""
    if rows.offline:
        return _of_terms(objective, rows.scores, rows.positives, rows.offline, epsilon)
    weights = score_weights(objective, rows.scores.detach(), rows.positives)
    strength = weights[:, in_batch:].abs()
    counted = strength > epsilon
    return OfflineCocos(
        per_query=float(counted.sum(1).double().mean()),
        weight=float(strength.where(counted, 0).sum(1).mean()),
        pairs=0.0,
    )


def _of_terms(
    objective: Objective,
    scores: Tensor,
    positives: Positives,
    offline: OfflineScores,
    epsilon: float,
) -> OfflineCocos:
    with torch.enable_grad():
        negative = offline.negative.detach().clone().requires_grad_()
        pair = offline.pair.detach().clone().requires_grad_()
        told = OfflineScores(offline.positive.detach(), negative, pair)
        value = objective(scores.detach(), positives, told).sum()
        found = torch.autograd.grad(value, (negative, pair), materialize_grads=True)
    of_negative, of_pair = (gradient.abs() for gradient in found)
    return OfflineCocos(
        per_query=float((of_negative > epsilon).double().mean()),
        weight=float(of_negative.where(of_negative > epsilon, 0).mean()),
        pairs=float((of_pair > epsilon).double().mean()),
    )
