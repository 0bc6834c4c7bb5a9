"""Negatives mined offline for the pairs of a batch, as `RetrievalLoss` takes them.

Pair i, image I and text T, has a mined text T- and a mined image I-; T~ is a text of I-, and I~ is
the image of T- (AOQ). So I- belongs to T~, and I~ to T-.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradspace.checks import Ids, check_finite, check_ids
from gradspace.execution.distributed import Items
from gradspace.objectives.statistics import OfflineScores
from gradspace.scores.positives import stable_ids
from gradspace.scores.tiles import as_computed


@dataclass(frozen=True)
class Offline:
    """Embeddings of what was mined, [pairs, d] each, and ids that are equal where they match."""

    images: Tensor
    """I-"""
    texts: Tensor
    """T-"""
    images_of_texts: Tensor
    """I~, the images of the mined texts"""
    texts_of_images: Tensor
    """T~, texts of the mined images"""
    image_ids: Ids
    """Ids of I- and T~."""
    text_ids: Ids
    """Ids of T- and I~."""

    def check(self, images: Tensor, texts: Tensor, values: bool = True) -> None:
        """Check shapes, types and ids and, with `values`, that no embedding is NaN or infinite."""
        if len(images) != len(texts):
            raise ValueError(
                "offline negatives are mined for pairs, image i with text i, got "
                f"{len(images)} images and {len(texts)} texts: use one caption per image"
            )
        for name in ("images", "texts", "images_of_texts", "texts_of_images"):
            mined: Tensor = getattr(self, name)
            if mined.shape != images.shape or mined.dtype != images.dtype:
                raise ValueError(
                    f"offline.{name} must be {list(images.shape)} of {images.dtype}, one for each "
                    f"pair of the batch, got {list(mined.shape)} of {mined.dtype}"
                )
            if values and not torch.compiler.is_compiling():
                check_finite(f"offline.{name}", mined)
        check_ids("offline.image_ids", self.image_ids, len(images), "pairs")
        check_ids("offline.text_ids", self.text_ids, len(images), "pairs")

    def each(self, change: Callable[[Tensor], Tensor]) -> Offline:
        """Apply a function to every tensor of embeddings."""
        return replace(
            self,
            images=change(self.images),
            texts=change(self.texts),
            images_of_texts=change(self.images_of_texts),
            texts_of_images=change(self.texts_of_images),
        )

    def scores(self, images: Tensor, texts: Tensor, terms: bool) -> MinedScores:
        """Score the batch with what was mined: for an objective's own terms, or as candidates."""
        if terms:
            return self.terms(images, texts)
        more_images, more_texts = self.items(by_position=False)
        return (
            FurtherScores(images @ more_texts.embeddings.t(), more_texts.ids),
            FurtherScores(texts @ more_images.embeddings.t(), more_images.ids),
        )

    def terms(self, images: Tensor, texts: Tensor) -> tuple[OfflineScores, OfflineScores]:
        """Scores of the images and of the texts, for objectives with terms for mined negatives."""
        own = _row_by_row(images, texts)
        return (
            OfflineScores(
                own, _row_by_row(images, self.texts), _row_by_row(self.images, self.texts)
            ),
            OfflineScores(
                own,
                _row_by_row(self.images, texts),
                _row_by_row(self.images_of_texts, self.texts_of_images),
            ),
        )

    def items(self, by_position: bool) -> tuple[Items, Items]:
        """Further images and texts, for all other objectives; duplicates count twice.

        By position they belong to nothing in the batch.
        """
        image_ids = stable_ids(self.image_ids, self.images.device)
        text_ids = stable_ids(self.text_ids, self.texts.device)
        images = Items(
            torch.cat([self.images, self.images_of_texts]), torch.cat([image_ids, text_ids])
        )
        texts = Items(
            torch.cat([self.texts, self.texts_of_images]), torch.cat([text_ids, image_ids])
        )
        return (images.without_ids(), texts.without_ids()) if by_position else (images, texts)


@dataclass(frozen=True)
class FurtherScores:
    """Scores of queries with what was mined for their batch, as further candidates."""

    scores: Tensor
    """Scores, [queries, further candidates]."""
    ids: Tensor
    """Ids of the further candidates."""


MinedRow = OfflineScores | FurtherScores
MinedScores = tuple[MinedRow, MinedRow]
"""Mined scores of the images, and of the texts."""


def _row_by_row(images: Tensor, texts: Tensor) -> Tensor:
    return (as_computed(images) * as_computed(texts)).sum(1)
