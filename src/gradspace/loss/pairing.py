"""Pairing of a batch's images and texts, in the form that each execution of a loss needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gradspace.checks import Ids, check_ids, num_ids_of_each
from gradspace.execution.batch_pairs import NO_PAIR
from gradspace.execution.distributed import Items, Processes
from gradspace.execution.triton.slots import Slots, slots_by_position, slots_of_ids
from gradspace.loss.mined import FurtherScores, MinedRow, MinedScores
from gradspace.objectives.statistics import OfflineScores
from gradspace.scores.positives import (
    Positives,
    match_ids,
    match_nothing,
    match_positions,
    stable_ids,
)
from gradspace.scores.tiles import as_computed


@dataclass(frozen=True)
class QueryRows:
    """Queries of one direction, with all their candidates."""

    scores: Tensor
    """Scores, [queries, candidates]."""
    positives: Positives
    offline: OfflineScores | None
    """Scores for objectives with terms for mined negatives."""


@dataclass(frozen=True)
class Pairing:
    """Pairing of a batch: equal ids belong together or, by position, image i and text i.

    If items have several ids, one in common makes a match.
    """

    image_ids: Ids | None
    text_ids: Ids | None
    position: bool = False

    @property
    def ids(self) -> tuple[Ids, Ids] | None:
        """Ids of the images and of the texts; None if paired by position."""
        if self.position or self.image_ids is None or self.text_ids is None:
            return None
        return self.image_ids, self.text_ids

    @property
    def ids_of_each(self) -> tuple[int | None, ...]:
        """Number of ids of an image and of a text, if ids are matrices."""
        return tuple(num_ids_of_each(ids) for ids in self.ids or ())

    @property
    def several(self) -> bool:
        return any(number is not None for number in self.ids_of_each)

    def check(self, num_images: int, num_texts: int) -> None:
        if (self.image_ids is None) != (self.text_ids is None):
            missing = "image_ids" if self.image_ids is None else "text_ids"
            raise ValueError(f"{missing} is missing: give the ids of both sides, or of none")
        if self.ids:
            check_ids("image_ids", self.ids[0], num_images, "images")
            check_ids("text_ids", self.ids[1], num_texts, "texts")
        elif num_images != num_texts:
            raise ValueError(
                f"pairs by position need as many images as texts, got {num_images} images and "
                f"{num_texts} texts; pass image_ids and text_ids"
            )

    def where(self, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Ids on a device, without synchronising; by position, the numbers of the images."""
        if self.ids is None:
            numbers = _numbers(count, device)
            return numbers, numbers
        image_ids, text_ids = self.ids
        return stable_ids(image_ids, device), stable_ids(text_ids, device)

    def slots(self, num_images: int, device: torch.device) -> Slots:
        """Positives as the kernels over tiles read them."""
        if self.ids is None:
            return slots_by_position(num_images, device)
        image_ids, text_ids = self.ids
        on_gpu = isinstance(image_ids, Tensor) and image_ids.is_cuda
        where = device if on_gpu else torch.device("cpu")
        return slots_of_ids(stable_ids(image_ids, where), stable_ids(text_ids, where), device)

    def items(self, images: Tensor, texts: Tensor, processes: Processes) -> tuple[Items, Items]:
        """Items with ids that are comparable between processes; by position, unique to each."""
        if self.ids is None:
            position = torch.arange(len(images), device=images.device) + (processes.rank << 40)
            return Items(images, position), Items(texts, position)
        image_ids, text_ids = self.ids
        return (
            Items(images, stable_ids(image_ids, images.device)),
            Items(texts, stable_ids(text_ids, texts.device)),
        )

    def rows(self, scores: Tensor, mined: MinedScores | None) -> tuple[QueryRows, QueryRows]:
        """Split `scores[image, text]` into the images' rows and the texts' rows."""
        image_to_text, text_to_image = self._positives(scores)
        image_ids, text_ids = self.ids or (None, None)
        of_images, of_texts = mined or (None, None)
        return (
            _with_mined(scores, image_to_text, image_ids, of_images),
            _with_mined(scores.t(), text_to_image, text_ids, of_texts),
        )

    def _positives(self, scores: Tensor) -> tuple[Positives, Positives]:
        if self.ids is None:
            by_position = match_positions(len(scores), scores.device)
            return by_position, by_position
        image_to_text = match_ids(*self.ids)
        if not torch.compiler.is_compiling() and not image_to_text.valid.any():
            raise ValueError(NO_PAIR)
        return image_to_text.to(scores.device), image_to_text.transpose().to(scores.device)


@lru_cache(maxsize=16)
def _numbers(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device)


def _with_mined(
    scores: Tensor, positives: Positives, ids: Ids | None, mined: MinedRow | None
) -> QueryRows:
    """Append further candidates to those of the batch, leaving each query's own ones out."""
    if not isinstance(mined, FurtherScores):
        return QueryRows(scores, positives, mined)
    further = as_computed(mined.scores)
    own = match_nothing(further) if ids is None else match_ids(ids, mined.ids).to(scores.device)
    return QueryRows(torch.cat([scores, further], 1), positives.with_more(own), None)
