"""COCOS of mined negatives: how many of them contribute, beside those of the batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradspace.analysis.weights import score_weights
from gradspace.execution.statistics import OfflineScores
from gradspace.objectives import Objective
from gradspace.offline import Offline
from gradspace.positives import Positives, match_ids, stable_ids


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
    if objective.uses_offline:
        scores, positives = images @ texts.t(), match_ids(ids, ids)
        of_images, of_texts = offline.scores(images, texts)
        return (
            _of_terms(objective, scores, positives, of_images, epsilon),
            _of_terms(objective, scores.t(), positives.transpose(), of_texts, epsilon),
        )
    more_images, more_texts = offline.items(by_position=False)
    return (
        _of_columns(objective, images, texts, ids, more_texts.embeddings, more_texts.ids, epsilon),
        _of_columns(
            objective, texts, images, ids, more_images.embeddings, more_images.ids, epsilon
        ),
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
    queries: Tensor,
    candidates: Tensor,
    ids: Tensor,
    more: Tensor,
    more_ids: Tensor,
    epsilon: float,
) -> OfflineCocos:
    """Rows in which some mined items belong to the query are computed without these."""
    scores = (queries @ torch.cat([candidates, more]).t()).detach()
    ids, more_ids = stable_ids(ids, scores.device), stable_ids(more_ids, scores.device)
    belongs = ids[:, None] == more_ids[None, :]
    weights = _weights(objective, scores, ids)
    for query in belongs.any(1).nonzero().squeeze(1).tolist():
        kept = torch.cat([torch.ones_like(ids, dtype=torch.bool), ~belongs[query]])
        weights[query] = 0
        weights[query, kept] = _weights(objective, scores[:, kept], ids)[query]
    mined = weights[:, len(ids) :].abs()
    counted = mined > epsilon
    return OfflineCocos(
        per_query=float(counted.sum(1).double().mean()),
        weight=float(mined.where(counted, 0).sum(1).mean()),
        pairs=0.0,
    )


def _weights(objective: Objective, scores: Tensor, ids: Tensor) -> Tensor:
    """The first columns are of the batch; nothing that was mined is a positive."""
    none = torch.arange(scores.shape[1] - len(ids), device=ids.device) + ids.max() + 1
    return score_weights(objective, scores, match_ids(ids, torch.cat([ids, none])))
