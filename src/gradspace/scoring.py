"""What is scored of a split: embeddings, or the parts that a model scores in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradspace.data.batches import text_batches
from gradspace.data.dataset import Split
from gradspace.embedding import (
    BATCH,
    Embeddings,
    Progress,
    average_similarity,
    embed_split,
    images_to_embed,
)
from gradspace.execution.tiles import EmbeddingScores, MatrixScores, PairScores
from gradspace.execution.two_stage import TwoStageScores
from gradspace.models import PairScorer, Reranker
from gradspace.models.pooling import length_mask
from gradspace.positives import Positives, match_ids
from gradspace.system import System


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of images and texts with their ids, and the model that scores them."""

    scorer: Reranker
    images: Tensor
    """[images, regions, width]"""
    words: Tensor
    """[words of all texts, width]"""
    lengths: Tensor
    """[texts]: how many words are of each, one text after the other."""
    image_ids: Tensor
    text_ids: Tensor
    image_names: Sequence[str]
    captions: Sequence[str]
    device: torch.device
    """Where they are scored."""

    def scores(self, progress: Progress | None = None) -> PairScores:
        starts = self.lengths.cumsum(0) - self.lengths
        return PairScores(
            self.scorer, self.images, self.words, starts, self.lengths, self.device, progress
        )

    def block(self, images: Tensor, texts: Tensor) -> Tensor:
        """[images, texts]: the scores of chosen ones."""
        return self.scores().block(images, texts)

    def positives(self) -> Positives:
        return match_ids(self.image_ids, self.text_ids)


Found = Embeddings | Parts
"""Of a split, by one model; both know their scores and their positives."""


def represent_split(
    system: System,
    split: Split,
    progress: Progress | None = None,
    *,
    store: torch.device | None = None,
) -> Found:
    """Every image and every caption of a split, in order, by a model of either kind.

    `store` is where parts are kept: of a large split, in the memory of the machine.
    """
    if isinstance(system.model, PairScorer):
        return _parts_of_split(system, system.model, split, progress, store or system.device)
    return embed_split(system, split, progress)


def rerank_split(
    system: System,
    split: Split,
    found: Embeddings,
    top: int,
    progress: Progress | None = None,
    *,
    proposal_weight: float | None = None,
    store: torch.device | None = None,
) -> TwoStageScores:
    """The `top` candidates of every query by the embeddings of a split, in the order of a model.

    `proposal_weight` is what the embeddings' scores count beside the model's own, by default what
    the model says: 0 goes by the scores of pairs alone.
    """
    if not isinstance(system.model, Reranker):
        raise ValueError(
            f"{system.model.name} embeds and scores no pairs: re-ranking needs a model that does "
            "both, as fusion"
        )
    parts = _parts_of_split(system, system.model, split, None, store or system.device)
    weight = system.model.proposal_weight if proposal_weight is None else proposal_weight
    return TwoStageScores(found.scores(), parts.scores(progress), top, weight)


@torch.no_grad()
def _parts_of_split(
    system: System,
    scorer: Reranker,
    split: Split,
    progress: Progress | None,
    store: torch.device,
) -> Parts:
    was_training = scorer.training
    scorer.eval()
    total = len(split.image_names) + len(split.captions)
    images: list[Tensor] = []
    words: list[Tensor] = []
    lengths: list[Tensor] = []
    for batch in images_to_embed(system, split):
        images.append(scorer.parts_of_images(batch.to(system.device)).float().to(store))
        _tell(progress, images, lengths, total)
    for tokens, counts in text_batches(split, system.encode, batch_size=BATCH):
        texts = scorer.parts_of_texts(tokens.to(system.device), counts).float()
        present = length_mask(counts, tokens.shape[1]).to(texts.device)
        words.append(texts[present].to(store))
        lengths.append(counts.cpu())
        _tell(progress, images, lengths, total)
    scorer.train(was_training)
    return Parts(
        scorer=scorer,
        images=torch.cat(images),
        words=torch.cat(words),
        lengths=torch.cat(lengths),
        image_ids=torch.arange(len(split.image_names)),
        text_ids=torch.from_numpy(split.image_of_caption),
        image_names=split.image_names,
        captions=split.captions,
        device=system.device,
    )


def _tell(
    progress: Progress | None, images: Sequence[Tensor], texts: Sequence[Tensor], total: int
) -> None:
    if progress:
        progress(sum(map(len, images)) + sum(map(len, texts)), total)


def mean_scores(
    members: Sequence[Found], progress: Progress | None = None
) -> EmbeddingScores | MatrixScores | PairScores:
    """The mean of the scores of several models, of either kind."""
    embedded = [member for member in members if isinstance(member, Embeddings)]
    if len(embedded) == len(members):
        return average_similarity(embedded)
    if len(members) == 1 and isinstance(members[0], Parts):
        return members[0].scores(progress)
    total = None
    for member in members:
        if isinstance(member, Parts):
            matrix = member.scores(progress).matrix().matrix
        else:
            scores = member.scores()
            matrix = scores.tile(slice(0, scores.shape[0]), slice(0, scores.shape[1]))
        total = matrix if total is None else total + matrix
    assert total is not None
    return MatrixScores(total / len(members))
