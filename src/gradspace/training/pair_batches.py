"""A batch of a model that scores pairs: its scores, and those of what was mined for it."""

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
            f"{model.name} scores pairs, and several processes cannot share its batches: train it "
            "in one process"
        )


def score_batch(
    scorer: PairScorer,
    objective: Objective,
    batch: Batch,
    images: Tensor,
    texts: Tensor,
    *,
    extended: bool,
) -> ScoredBatch:
    """From the parts of both sides; `extended` by what was mined, see `second_round`."""
    if not extended:
        scores = scorer.score(images, texts, batch.lengths)
        return ScoredBatch(scores, batch.image_ids, batch.text_ids)
    own, of_images, of_texts = (
        _Pairs(*rows)
        for rows in zip(
            images.chunk(3), texts.chunk(3), batch.lengths.chunk(3), batch.image_ids.chunk(3),
            strict=True,
        )
    )  # fmt: skip
    scores = scorer.score(own.images, own.texts, own.lengths)
    mined = _mined_terms if objective.uses_offline else _further_scores
    return ScoredBatch(scores, own.ids, own.ids, mined(scorer, scores, own, of_images, of_texts))


@dataclass(frozen=True)
class _Pairs:
    """Images with their texts: those of the batch; I- with T~; I~ with T-."""

    images: Tensor
    texts: Tensor
    lengths: Tensor
    ids: Tensor


def _mined_terms(
    scorer: PairScorer, scores: Tensor, own: _Pairs, of_images: _Pairs, of_texts: _Pairs
) -> MinedScores:
    """s(I, T-), s(I-, T-), s(I-, T) and s(I~, T~), in one go."""
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
    ids = torch.cat([side.ids for side in more])
    texts, lengths = (torch.cat([getattr(side, k) for side in more]) for k in ("texts", "lengths"))
    images = torch.cat([side.images for side in more])
    return (
        FurtherScores(scorer.score(own.images, texts, lengths), ids),
        FurtherScores(scorer.score(images, own.texts, own.lengths).t(), ids),
    )


def all_parts(images: Tensor, texts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Every region and every word of a batch, a row each."""
    present = length_mask(lengths, texts.shape[1]).to(texts.device)
    return images.flatten(0, 1), texts[present]
