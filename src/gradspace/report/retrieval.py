"""Retrieval of a run for one query: the first few candidates, and the rank of a right one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gradspace.scores.represented import Represented

NUM_SHOWN = 5


@dataclass(frozen=True)
class Retrieved:
    """Best candidates of a query, best first."""

    candidates: tuple[int, ...]
    right: tuple[bool, ...]
    rank: int
    """Rank of the best right candidate among the wrong ones."""

    @property
    def is_right(self) -> bool:
        return self.rank == 1


def retrieve(
    found: Represented, way: str, query: int, *, folds: int = 1, num: int = NUM_SHOWN
) -> Retrieved:
    """Rank the candidates of an image ("i2t") or a caption ("t2i") within its fold.

    Among equal scores the right ones come last, so that a model with constant scores is not shown
    as right.
    """
    image_of_text = found.text_ids.cpu().numpy()
    image = query if way == "i2t" else int(image_of_text[query])
    fold_size = len(found.images) // folds
    first = image // fold_size * fold_size
    if way == "i2t":
        inside = (image_of_text >= first) & (image_of_text < first + fold_size)
        candidates = np.flatnonzero(inside)
        right = image_of_text[candidates] == image
        scores = _scores(found, np.array([query]), candidates)
    else:
        candidates = np.arange(first, first + fold_size)
        right = candidates == image
        scores = _scores(found, candidates, np.array([query]))
    order = np.lexsort((candidates, right, -scores))[:num]
    best = scores[right].max(initial=-np.inf)
    return Retrieved(
        candidates=tuple(candidates[order].tolist()),
        right=tuple(right[order].tolist()),
        rank=1 + int((scores[~right] >= best).sum()),
    )


def _scores(
    found: Represented, images: NDArray[np.int64], texts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Score one image with texts, or one text with images."""
    scores = found.block(torch.from_numpy(images), torch.from_numpy(texts))
    return np.asarray(scores.flatten().double().cpu().numpy())
