"""Offline negatives of a training batch, drawn from mined lists.

A pair (image I, caption T) gets a caption T- from I's list and an image I- from T's list; with them
come T~, a caption of I-, and I~, the image of T- (AOQ's offline quintuplets).

A draw is a pure function of seed, epoch, image and caption: it does not depend on the order of the
pairs, the batch, the worker or the process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradspace.data.dataset import Indices, Split
from gradspace.mining.lists import HalfFloats, MinedLists

Draw = Literal["uniform", "normal"]
RandomWords = NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Options for drawing negatives from lists.

    Relations: the defaults are the published draw, with n from 0 .. 299, caption rank n and image
    rank n // 5.
    """

    draw: Draw = "uniform"
    """uniform: every entry is equally likely. normal: the rank is round((k - 1) / 2 + k / 6 z), for
    k entries and a standard normal z, clamped to 0 .. k - 1, so mostly the middle of the list."""
    shared: bool = True
    """Whether one draw n among the k captions that are not left out gives both the caption of rank
    n and, among m images, the image of rank n m // k; otherwise there are two independent draws."""
    num_texts: int = 300
    """Number of entries at the start of an image's list that take part."""
    num_images: int = 60
    skip: int = 0
    """Number of first entries of a list to leave out, as likely false negatives."""
    above: float | None = None
    """Largest excess over the positive pair's score; entries above it are left out. If that leaves
    nothing, the last entry that takes part is drawn."""

    def __post_init__(self) -> None:
        if self.draw not in ("uniform", "normal"):
            raise ValueError(f"draw is {self.draw!r}; use 'uniform' or 'normal'")
        for name in ("num_texts", "num_images"):
            number = getattr(self, name)
            if number < 1:
                raise ValueError(f"{name} is {number}; use at least 1")
            if not 0 <= self.skip < number:
                raise ValueError(
                    f"skip is {self.skip} and {name} is {number}; skip at least 0 and at most "
                    f"{number - 1} entries"
                )


@dataclass(frozen=True, eq=False)
class OfflineDraw:
    """Offline negatives of every pair, as indices into the split."""

    texts: Indices
    """T-, from the list of the pair's image."""
    images: Indices
    """I-, from the list of the pair's caption."""
    texts_of_images: Indices
    """T~, a random caption of I-."""
    images_of_texts: Indices
    """I~, the image of T-."""


def draw_offline(
    lists: MinedLists,
    split: Split,
    sampling: Sampling,
    images: Indices,
    captions: Indices,
    seed: int,
    epoch: int,
) -> OfflineDraw:
    """Draw the offline negatives of the pairs (images[i], captions[i]).

    The caller should call `lists.check_matches(split)` once before.
    """
    _check_lengths(lists, sampling)
    _check_pairs(split, images, captions)
    words = [_random_words(seed, epoch, stream, images, captions) for stream in range(3)]
    left_out = _num_left_out(lists, sampling, images, captions)
    text_ranks, image_ranks = _draw_ranks(sampling, *left_out, *words[:2])
    texts = lists.texts_of_image[images, text_ranks].astype(np.int64)
    found = lists.images_of_text[captions, image_ranks].astype(np.int64)
    return OfflineDraw(
        texts=texts,
        images=found,
        texts_of_images=_one_caption_of(split, found, words[2]),
        images_of_texts=split.image_of_caption[texts],
    )


def _num_left_out(
    lists: MinedLists, sampling: Sampling, images: Indices, captions: Indices
) -> tuple[Indices, Indices]:
    """Count the entries at the start of the pairs' lists that must not be drawn."""
    skipped = np.full(len(images), sampling.skip)
    if sampling.above is None:
        return skipped, skipped
    limit = lists.positive_scores[captions].astype(np.float32) + np.float32(sampling.above)
    text_scores = lists.text_scores[images, : sampling.num_texts]
    image_scores = lists.image_scores[captions, : sampling.num_images]
    return (
        np.maximum(skipped, _num_above(text_scores, limit)),
        np.maximum(skipped, _num_above(image_scores, limit)),
    )


def _draw_ranks(
    sampling: Sampling,
    texts_left_out: Indices,
    images_left_out: Indices,
    text_words: RandomWords,
    image_words: RandomWords,
) -> tuple[Indices, Indices]:
    num_texts = np.maximum(sampling.num_texts - texts_left_out, 1)
    num_images = np.maximum(sampling.num_images - images_left_out, 1)
    text_places = _draw(text_words, num_texts, sampling.draw)
    if sampling.shared:
        image_places = text_places * num_images // num_texts
    else:
        image_places = _draw(image_words, num_images, sampling.draw)
    # Counted from the end of what takes part: if all is left out, the last entry is drawn.
    return (
        sampling.num_texts - num_texts + text_places,
        sampling.num_images - num_images + image_places,
    )


def _num_above(scores: HalfFloats, limit: NDArray[np.float32]) -> Indices:
    """Count the entries that score higher; they come first, because lists are sorted."""
    count: Indices = np.count_nonzero(scores > limit[:, None], axis=1)
    return count


def _draw(words: RandomWords, count: Indices, draw: Draw) -> Indices:
    """Draw a position among `count` entries, from 0."""
    if draw == "uniform":
        return _below(words, count)
    from scipy.special import ndtri  # takes a third of a second to import

    z = ndtri((words + 0.5) / 2.0**32)
    place = np.floor(count / 2 + count / 6 * z)  # equals round((count - 1) / 2 + count / 6 z)
    inside: Indices = np.clip(place, 0, count - 1).astype(np.int64)
    return inside


def _one_caption_of(split: Split, images: Indices, words: RandomWords) -> Indices:
    """Choose a random caption of every image."""
    by_image = np.argsort(split.image_of_caption, kind="stable")  # fast if it is sorted already
    in_order = split.image_of_caption[by_image]
    first = np.searchsorted(in_order, images)
    count = np.searchsorted(in_order, images, side="right") - first
    if not count.all():
        image = images[count == 0][0]
        raise ValueError(
            f"image {image} ({split.image_names[image]}) has no caption to be drawn: call "
            "check_matches on the lists before training"
        )
    captions: Indices = by_image[first + _below(words, count)]
    return captions


# --- random numbers that depend only on their purpose ---------------------------------------------


def _below(words: RandomWords, count: Indices) -> Indices:
    """Draw whole numbers 0 .. count - 1, equally likely, from 32 random bits each."""
    numbers: Indices = ((words * count.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)
    return numbers


def _random_words(
    seed: int, epoch: int, stream: int, images: Indices, captions: Indices
) -> RandomWords:
    """Draw 32 random bits for every pair."""
    state = np.zeros(len(images), np.uint64)
    for part in (seed, epoch, stream, images, captions):
        state = _mix(state ^ np.asarray(part).astype(np.uint64))
    return state >> np.uint64(32)


def _mix(state: RandomWords) -> RandomWords:
    """Apply one step of SplitMix64 (Steele et al., 2014), which mixes all bits of the state."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


# --- checks --------------------------------------------------------------------------------------


def _check_lengths(lists: MinedLists, sampling: Sampling) -> None:
    for name, asked, found in (
        ("num_texts", sampling.num_texts, lists.texts_of_image.shape[1]),
        ("num_images", sampling.num_images, lists.images_of_text.shape[1]),
    ):
        if asked > found:
            raise ValueError(
                f"{name} is {asked}, and the mined lists have {found} entries: use at most "
                f"{found}, or mine longer lists"
            )


def _check_pairs(split: Split, images: Indices, captions: Indices) -> None:
    if len(images) != len(captions):
        raise ValueError(
            f"images and captions must be pairs, got {len(images)} images and {len(captions)} "
            "captions; repeat an image for each of its captions"
        )
    wrong = np.flatnonzero(split.image_of_caption[captions] != images)
    if len(wrong):
        raise ValueError(
            f"images and captions must be pairs, got image {images[wrong[0]]} with caption "
            f"{captions[wrong[0]]} of image {split.image_of_caption[captions[wrong[0]]]}"
        )
