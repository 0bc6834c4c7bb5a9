"""Similarity of captions by the words they share, independent of any model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradspace.data.vocabulary import words


class CaptionCloseness:
    """Compares captions by their words; rare ones count most.

    The closeness of two captions is the cosine between their sets of words, each weighted by
    log(captions / captions that have it): 1 for the same words in any order, 0 for none in common.

    Examples:
        >>> captions = ["a dog runs", "a dog in the snow", "a cat sleeps", "a red car"]
        >>> close = CaptionCloseness(captions, np.array([0, 0, 1, 1]))
        >>> own, closeness = close.closest(2, 0)
        >>> closeness
        0.0
    """

    def __init__(self, captions: Sequence[str], image_of_caption: NDArray[np.integer]) -> None:
        self._words = [frozenset(words(caption)) for caption in captions]
        counts = Counter(word for own in self._words for word in own)
        self._squares = {word: math.log(len(captions) / n) ** 2 for word, n in counts.items()}
        self._lengths = [math.sqrt(self._sum(own)) for own in self._words]
        self._of_image: dict[int, list[int]] = {}
        for caption, image in enumerate(image_of_caption.tolist()):
            self._of_image.setdefault(image, []).append(caption)

    def closest(self, caption: int, image: int) -> tuple[int | None, float]:
        """Find the caption of an image that is closest to another one, and their closeness."""
        own = self._of_image.get(image, [])
        if not own:
            return None, 0.0
        found = [self._of_two(caption, other) for other in own]
        best = max(range(len(own)), key=found.__getitem__)
        return own[best], found[best]

    def _of_two(self, first: int, second: int) -> float:
        lengths = self._lengths[first] * self._lengths[second]
        shared = self._sum(self._words[first] & self._words[second])
        return min(1.0, shared / lengths) if lengths else 0.0

    def _sum(self, chosen: frozenset[str]) -> float:
        return math.fsum(self._squares[word] for word in chosen)
