"""Captions and images that belong together: by image, or by equal captions.

If a caption is written word for word for several images ("many green trees are in a forest"), it
is true of all of them. An image then belongs to every caption that equals one of its own. Single
equal ids cannot express this, as two images may share one caption and not the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gradspace.data.dataset import Indices, Split
from gradspace.data.vocabulary import words
from gradspace.scores.positives import Positives, match_ids

NO_TEXT = -1


@dataclass(frozen=True)
class PairIds:
    """The ids of a split's images and captions; equal ids belong together."""

    images: Tensor
    """int64 [images], or [images, k] if each has several."""
    captions: Tensor
    """int64 [captions]"""

    def positives(self) -> Positives:
        return match_ids(self.images, self.captions)


def ids_by_image(split: Split) -> PairIds:
    """Match each caption with the image that it was written for."""
    captions = torch.from_numpy(np.asarray(split.image_of_caption))
    return PairIds(torch.arange(len(split.image_names)), captions)


def ids_by_text(own: Positives, captions: Sequence[str]) -> PairIds:
    """Match each caption with every image that has an equal one; `own` lists each image's own."""
    texts = torch.from_numpy(text_numbers(captions)).to(own.index.device)
    if not len(texts):
        return PairIds(torch.full_like(own.index, NO_TEXT), texts)
    return PairIds(texts[own.index].where(own.valid, NO_TEXT), texts)


def text_numbers(captions: Sequence[str]) -> Indices:
    """Number captions [captions], equally if only case or punctuation differs."""
    numbers: dict[str, int] = {}
    said = (" ".join(words(caption)) or caption.strip() for caption in captions)
    return np.array([numbers.setdefault(text, len(numbers)) for text in said], np.int64)
