"""Representation of a split for scoring: embeddings, or parts that a model scores in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradspace.progress import Progress
from gradspace.scores.positives import Positives, match_ids
from gradspace.scores.tiles import EmbeddingScores, MatrixScores, PairScores, ScoresPairs
from gradspace.tensor_files import load_tensors, save_tensors


@dataclass(frozen=True)
class Embeddings:
    """Unit vectors of images and texts with their ids: equal ids belong together."""

    images: Tensor
    texts: Tensor
    image_ids: Tensor
    text_ids: Tensor
    image_names: Sequence[str]
    captions: Sequence[str]

    def scores(self) -> EmbeddingScores:
        return EmbeddingScores(self.images, self.texts)

    def block(self, images: Tensor, texts: Tensor) -> Tensor:
        """Score the chosen images against the chosen texts, [images, texts]."""
        rows, columns = images.to(self.images.device), texts.to(self.texts.device)
        return self.images[rows].float() @ self.texts[columns].float().t()

    def positives(self) -> Positives:
        return match_ids(self.image_ids, self.text_ids)


@dataclass(frozen=True, eq=False)
class Parts:
    """Parts of images and texts with their ids, and the model that scores them."""

    scorer: ScoresPairs
    images: Tensor
    """Regions of the images, [images, regions, width]."""
    words: Tensor
    """Words of all texts, one text after the other, [words, width]."""
    lengths: Tensor
    """Number of words of each text, [texts]."""
    image_ids: Tensor
    text_ids: Tensor
    image_names: Sequence[str]
    captions: Sequence[str]
    device: torch.device
    """Device on which they are scored."""

    def scores(self, progress: Progress | None = None) -> PairScores:
        starts = self.lengths.cumsum(0) - self.lengths
        return PairScores(
            self.scorer, self.images, self.words, starts, self.lengths, self.device, progress
        )

    def block(self, images: Tensor, texts: Tensor) -> Tensor:
        """Score the chosen images against the chosen texts, [images, texts]."""
        return self.scores().block(images, texts)

    def positives(self) -> Positives:
        return match_ids(self.image_ids, self.text_ids)


Represented = Embeddings | Parts
"""A split as a model represents it for scoring."""


def mean_scores(
    members: Sequence[Represented], progress: Progress | None = None
) -> EmbeddingScores | MatrixScores | PairScores:
    """Average the scores of several models, of either kind."""
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


def average_similarity(members: Sequence[Embeddings]) -> EmbeddingScores:
    """Average the scores of several models, as in the published results of VSRN.

    The inner product of concatenated vectors is the sum of the inner products.
    """
    images = torch.cat([member.images for member in members], 1) / len(members)
    return EmbeddingScores(images, torch.cat([member.texts for member in members], 1))


def save_embeddings(path: Path, embeddings: Embeddings) -> None:
    """Save images, texts and ids as a safetensors file, with names and captions in its record."""
    tensors = {k: getattr(embeddings, k) for k in ("images", "texts", "image_ids", "text_ids")}
    names = {"image_names": list(embeddings.image_names), "captions": list(embeddings.captions)}
    save_tensors(path, tensors, names)


def load_embeddings(path: Path) -> Embeddings:
    tensors, record = load_tensors(path)
    values: dict[str, Any] = {**tensors, **record}
    try:
        return Embeddings(**values)
    except TypeError as error:
        raise ValueError(f"{path} is not a file of embeddings ({error})") from error
