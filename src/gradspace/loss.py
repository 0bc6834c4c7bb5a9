"""`RetrievalLoss`: an objective applied to a batch of embeddings, in both directions."""

from __future__ import annotations

from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from gradspace.checks import check_embeddings, check_ids
from gradspace.objectives import Objective, objective
from gradspace.objectives.contract import Reduction
from gradspace.positives import Ids, Positives, match_ids, match_positions

Choice = TypeVar("Choice", bound=str)


class RetrievalLoss(nn.Module):
    """Both directions of an objective over image and text embeddings, as one number.

    Inputs: `images` [n, d] and `texts` [m, d]; `image_ids` and `text_ids` say what belongs together
    (equal ids). Without ids, image i belongs to text i.

    Args:
        objective: an objective or its name.
        reduction: "sum" over the queries of both directions, or "mean": the average of the two
            directions' means over their queries. By default as published for the objective. Queries
            without a positive are not counted.
        normalize: scale every embedding to length 1 first.
        positives: "ids", or "position": image i belongs to text i whatever the ids say, so that
            other captions of the same image are negatives, as in most published code.

    Example:
        >>> loss = RetrievalLoss("triplet-hard")
        >>> images = torch.eye(3, requires_grad=True)
        >>> loss(images, torch.eye(3)).item()
        0.0
    """

    def __init__(
        self,
        objective: Objective | str,
        *,
        reduction: Reduction | None = None,
        normalize: bool = False,
        positives: Literal["ids", "position"] = "ids",
    ) -> None:
        super().__init__()
        self.objective = _as_objective(objective)
        self.reduction = _one_of("reduction", reduction or self.objective.reduction, "sum", "mean")
        self.normalize = normalize
        self.positives = _one_of("positives", positives, "ids", "position")

    def forward(
        self,
        images: Tensor,
        texts: Tensor,
        image_ids: Ids | None = None,
        text_ids: Ids | None = None,
    ) -> Tensor:
        check_embeddings(images, texts)
        image_to_text, text_to_image = self._match(images, texts, image_ids, text_ids)
        with torch.autocast(images.device.type, enabled=False):
            images, texts = _at_least_float32(images), _at_least_float32(texts)
            if self.normalize:
                images = nn.functional.normalize(images, dim=1)
                texts = nn.functional.normalize(texts, dim=1)
            scores = images @ texts.t()
            by_image = self.objective(scores, image_to_text)
            by_text = self.objective(scores.t(), text_to_image)
        if self.reduction == "sum":
            return by_image.sum() + by_text.sum()
        return (_mean(by_image, image_to_text) + _mean(by_text, text_to_image)) / 2

    def extra_repr(self) -> str:
        return f"{self.objective}, reduction={self.reduction!r}, normalize={self.normalize}"

    def _match(
        self, images: Tensor, texts: Tensor, image_ids: Ids | None, text_ids: Ids | None
    ) -> tuple[Positives, Positives]:
        """The positives of every image and of every text."""
        if (image_ids is None) != (text_ids is None):
            missing = "image_ids" if image_ids is None else "text_ids"
            raise ValueError(f"{missing} is missing: give the ids of both sides, or of none")
        if image_ids is None or text_ids is None or self.positives == "position":
            if len(images) != len(texts):
                raise ValueError(
                    f"pairs by position need as many images as texts, got {len(images)} images and "
                    f"{len(texts)} texts; pass image_ids and text_ids"
                )
            pairs = match_positions(len(images), images.device)
            return pairs, pairs
        check_ids("image_ids", image_ids, len(images), "images")
        check_ids("text_ids", text_ids, len(texts), "texts")
        image_to_text = match_ids(image_ids, text_ids, images.device)
        if not torch.compiler.is_compiling() and not image_to_text.valid.any():
            raise ValueError("no image id equals a text id: the batch has no positive pair at all")
        return image_to_text, image_to_text.transpose()


def _mean(values: Tensor, positives: Positives) -> Tensor:
    return values.sum() / positives.any_valid.sum().clamp(min=1)


def _at_least_float32(embeddings: Tensor) -> Tensor:
    return embeddings if embeddings.dtype == torch.float64 else embeddings.float()


def _as_objective(given: Objective | str) -> Objective:
    return objective(given) if isinstance(given, str) else given


def _one_of(name: str, value: Choice, *choices: str) -> Choice:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value
