"""Closeness of captions, against loops over their words."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradspace.data.open import open_dataset
from gradspace.data.vocabulary import words
from gradspace.mining.closeness import CaptionCloseness

CAPTIONS = [
    "A dog runs.",
    "a dog in the snow",
    "the snow: a DOG in",
    "a red car",
    "a",
    "zebra zebra zebra",
    "",
]
IMAGES = np.array([0, 0, 1, 1, 2, 2, 3])


def by_loops(captions: list[str], first: int, second: int) -> float:
    """The cosine of two vectors with an entry for every word there is."""
    every = sorted({word for caption in captions for word in words(caption)})

    def vector(caption: str) -> list[float]:
        found = []
        for word in every:
            having = sum(word in words(other) for other in captions)
            found.append(math.log(len(captions) / having) if word in words(caption) else 0.0)
        return found

    a, b = vector(captions[first]), vector(captions[second])
    lengths = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / lengths if lengths else 0.0


@pytest.mark.parametrize("image", [0, 1, 2, 3])
@pytest.mark.parametrize("caption", range(len(CAPTIONS)))
def test_the_closest_is_that_of_loops(caption: int, image: int) -> None:
    own = np.flatnonzero(image == IMAGES).tolist()
    expected = [by_loops(CAPTIONS, caption, other) for other in own]
    found, closeness = CaptionCloseness(CAPTIONS, IMAGES).closest(caption, image)
    assert closeness == pytest.approx(max(expected))
    assert found is not None
    assert expected[own.index(found)] == pytest.approx(max(expected))


def test_order_and_case_do_not_count_and_what_all_say_says_nothing() -> None:
    close = CaptionCloseness(CAPTIONS, IMAGES)
    assert close.closest(1, 1)[0] == 2
    assert close.closest(1, 1)[1] == pytest.approx(1)
    assert CaptionCloseness(["a dog", "a cat"], np.array([0, 1])).closest(0, 1)[1] == 0
    assert CaptionCloseness(["a dog", "a dog"], np.array([0, 1])).closest(0, 1)[1] == 0
    assert close.closest(0, 9) == (None, 0.0), "an image without captions"


def test_captions_of_one_image_are_closer_than_others() -> None:
    """The first caption of every image against the rest of its own, and those of the next."""
    split = open_dataset("scenes", num_train=60, num_dev=1, num_test=1).splits["train"]
    owner = np.array(split.image_of_caption)
    firsts = np.unique(owner, return_index=True)[1].tolist()
    rest = owner.copy()
    rest[firsts] = -1
    close = CaptionCloseness(split.captions, rest)
    own = [close.closest(first, image)[1] for image, first in enumerate(firsts)]
    others = [close.closest(first, (image + 1) % 60)[1] for image, first in enumerate(firsts)]
    assert np.mean(own) > 1.5 * np.mean(others)
