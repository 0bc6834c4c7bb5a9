"""Measurements of a batch during training: the samples that contribute to the gradient."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from gradspace.analysis.cocos import cocos
from gradspace.analysis.diagrams import some_triplets
from gradspace.analysis.mined import OfflineCocos, offline_cocos, offline_cocos_of_scores
from gradspace.analysis.score_file import SavedScores
from gradspace.loss.mined import Offline
from gradspace.objectives import Objective
from gradspace.scores.positives import Positives, match_ids
from gradspace.training.pair_batches import ScoredBatch

MOST_IMAGES = 1024
"""Largest number of images measured in a batch: of a larger one the first, with their texts, as the
count needs the matrix of their scores, which the objective itself may do without."""

NUM_TRIPLETS = 100
"""Number of triplets logged with every count."""


@torch.no_grad()
def contributions(
    objective: Objective, images: Tensor, texts: Tensor, image_ids: Tensor, text_ids: Tensor
) -> dict[str, Any]:
    """Measure COCOS of a batch in both directions, with examples of its triplets."""
    if len(images) > MOST_IMAGES:
        images, image_ids = images[:MOST_IMAGES], image_ids[:MOST_IMAGES]
        theirs = torch.isin(text_ids, image_ids)
        texts, text_ids = texts[theirs], text_ids[theirs]
    scores = images.float() @ texts.float().t()
    return _contributions(objective, scores, match_ids(image_ids, text_ids))


@torch.no_grad()
def contributions_of_scores(objective: Objective, batch: ScoredBatch) -> dict[str, Any]:
    """Measure a batch of a model that scores pairs, with its mined negatives."""
    ids = batch.image_ids.to(batch.scores.device), batch.text_ids.to(batch.scores.device)
    positives = match_ids(*ids)
    found = _contributions(objective, batch.scores, positives)
    if batch.mined is None:
        return found
    return found | _both_ways(offline_cocos_of_scores(objective, batch.scores, ids, batch.mined))


def _contributions(objective: Objective, scores: Tensor, positives: Positives) -> dict[str, Any]:
    return {
        "image_to_text": asdict(cocos(objective, scores, positives)),
        "text_to_image": asdict(cocos(objective, scores.t(), positives.transpose())),
        "triplets": some_triplets(SavedScores(scores, positives), NUM_TRIPLETS),
    }


@torch.no_grad()
def offline_contributions(
    objective: Objective,
    images: Tensor,
    texts: Tensor,
    image_ids: Tensor,
    text_ids: Tensor,
    offline: Offline,
) -> dict[str, Any]:
    """Measure COCOS of the mined negatives of this process's pairs."""
    ids, mined = (image_ids, text_ids), offline.each(lambda part: part.float())
    return _both_ways(offline_cocos(objective, images.float(), texts.float(), ids, mined))


def _both_ways(found: tuple[OfflineCocos, OfflineCocos]) -> dict[str, Any]:
    ways = ("image_to_text", "text_to_image")
    return {"offline": {way: asdict(counts) for way, counts in zip(ways, found, strict=True)}}
