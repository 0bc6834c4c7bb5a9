"""Scores of a batch by a model that scores pairs, with those of its mined negatives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradspace import processes
from gradspace.data.batches import Batch
from gradspace.loss.mined import FurtherScores, MinedScores
from gradspace.models import PairScorer, RetrievalModel
from gradspace.models.pooling import length_mask
from gradspace.objectives import Objective
from gradspace.objectives.statistics import OfflineScores


@dataclass(frozen=True)
class ScoredBatch:
    """scores[image, text] with ids; equal ids belong together."""

    scores: Tensor
    image_ids: Tensor
    text_ids: Tensor
    mined: MinedScores | None = None


def check_processes(model: RetrievalModel) -> None:
    if isinstance(model, PairScorer) and processes.world_size() > 1:
        raise ValueError(
            f"{model.name} scores pairs, so several processes cannot share its batches: train "
            "it in one process"
        )


def score_batch(
    scorer: PairScorer,
    objective: Objective,
    batch: Batch,
    images: Tensor,
    texts: Tensor,
    ids: tuple[Tensor, Tensor],
    *,
    extended: bool,
) -> ScoredBatch:
    """Score a batch from the parts and ids of both sides; `extended` as in `second_round`."""
    if not extended:
        return ScoredBatch(scorer.score(images, texts, batch.lengths), *ids)
    sides = (images, texts, batch.lengths, *ids)
    own, of_images, of_texts = (
        _Pairs(*rows) for rows in zip(*(side.chunk(3) for side in sides), strict=True)
    )
    scores = scorer.score(own.images, own.texts, own.lengths)
    mined = _mined_terms if objective.uses_offline else _further_scores
    found = mined(scorer, scores, own, of_images, of_texts)
    return ScoredBatch(scores, own.image_ids, own.text_ids, found)


@dataclass(frozen=True)
class _Pairs:
    """Images with their texts: those of the batch, I- with T~, or I~ with T-."""

    images: Tensor
    texts: Tensor
    lengths: Tensor
    image_ids: Tensor
    text_ids: Tensor


def _mined_terms(
    scorer: PairScorer, scores: Tensor, own: _Pairs, of_images: _Pairs, of_texts: _Pairs
) -> MinedScores:
    """Compute s(I, T-), s(I-, T-), s(I-, T) and s(I~, T~) in one go."""
    rows = (own, of_images, of_images, of_texts)
    columns = (of_texts, of_texts, own, of_images)
    found = scorer.score_pairs(
        torch.cat([side.images for side in rows]),
        torch.cat([side.texts for side in columns]),
        torch.cat([side.lengths for side in columns]),
    )
    negative_text, mined_pair, negative_image, own_pair = found.chunk(4)
    positive = scores.diagonal()
    return (
        OfflineScores(positive, negative_text, mined_pair),
        OfflineScores(positive, negative_image, own_pair),
    )


def _further_scores(
    scorer: PairScorer, scores: Tensor, own: _Pairs, of_images: _Pairs, of_texts: _Pairs
) -> MinedScores:
    more = (of_texts, of_images)
    image_ids, text_ids = (
        torch.cat([getattr(side, k) for side in more]) for k in ("image_ids", "text_ids")
    )
    texts, lengths = (torch.cat([getattr(side, k) for side in more]) for k in ("texts", "lengths"))
    images = torch.cat([side.images for side in more])
    return (
        FurtherScores(scorer.score(own.images, texts, lengths), text_ids),
        FurtherScores(scorer.score(images, own.texts, own.lengths).t(), image_ids),
    )


def all_parts(images: Tensor, texts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return every region and every word of a batch, one per row."""
    present = length_mask(lengths, texts.shape[1]).to(texts.device)
    return images.flatten(0, 1), texts[present]
