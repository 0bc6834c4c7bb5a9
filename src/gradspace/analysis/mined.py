"""COCOS of mined negatives: how many of them contribute, beside those of the batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradspace.analysis.weights import score_weights
from gradspace.loss.mined import MinedColumns, MinedScores, Offline
from gradspace.objectives import Objective
from gradspace.objectives.statistics import OfflineScores
from gradspace.scores.positives import Positives, match_ids


@dataclass(frozen=True)
class OfflineCocos:
    """Of one direction; means over the queries."""

    per_query: float
    """Mined negatives of a query with a |weight| above epsilon."""
    weight: float
    """Their summed |weight|."""
    pairs: float
    """Contributing pairs of which both sides are mined, for objectives that have such terms."""


def offline_cocos(
    objective: Objective,
    images: Tensor,
    texts: Tensor,
    ids: Tensor,
    offline: Offline,
    epsilon: float = 0.01,
) -> tuple[OfflineCocos, OfflineCocos]:
    """Image to text, and text to image, of pairs (image i, text i) with equal ids."""
    mined: MinedScores
    if objective.uses_offline:
        mined = offline.scores(images, texts)
    else:
        more_images, more_texts = offline.items(by_position=False)
        mined = MinedColumns(
            of_images=images @ more_texts.embeddings.t(),
            of_texts=texts @ more_images.embeddings.t(),
            text_ids=more_texts.ids,
            image_ids=more_images.ids,
        )
    return offline_cocos_of_scores(objective, images @ texts.t(), ids, mined, epsilon)


def offline_cocos_of_scores(
    objective: Objective, scores: Tensor, ids: Tensor, mined: MinedScores, epsilon: float = 0.01
) -> tuple[OfflineCocos, OfflineCocos]:
    """The same from scores[image, text], and those of what was mined."""
    positives = match_ids(ids, ids)
    if isinstance(mined, MinedColumns):
        of_images = (scores, mined.of_images), positives, match_ids(ids, mined.text_ids)
        of_texts = (scores.t(), mined.of_texts), positives, match_ids(ids, mined.image_ids)
        return _of_columns(objective, *of_images, epsilon), _of_columns(
            objective, *of_texts, epsilon
        )
    return (
        _of_terms(objective, scores, positives, mined[0], epsilon),
        _of_terms(objective, scores.t(), positives.transpose(), mined[1], epsilon),
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


def _of_columns(
    objective: Objective,
    scores: tuple[Tensor, Tensor],
    positives: Positives,
    own: Positives,
    epsilon: float,
) -> OfflineCocos:
    """Mined items that belong to a query (`own`) are left out of its row."""
    known, mined = (part.detach() for part in scores)
    weights = score_weights(objective, torch.cat([known, mined], 1), positives.with_more(own))
    strength = weights[:, known.shape[1] :].abs()
    counted = strength > epsilon
    return OfflineCocos(
        per_query=float(counted.sum(1).double().mean()),
        weight=float(strength.where(counted, 0).sum(1).mean()),
        pairs=0.0,
    )
