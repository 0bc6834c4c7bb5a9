"""Audit of mined lists: the share of false negatives if the truth is known, suspects if not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspace.mining.closeness import CaptionCloseness
from gradspace.mining.lists import HalfFloats, MinedLists, Positions
from gradspace.scores.tiles import blocks

ROWS = 4096
"""Number of lists processed at once."""
LOOKED_AT = 50_000
"""Number of highest-scoring pairs searched for false negatives."""
CLOSE, FAR = 0.5, 0.3
"""Thresholds of closeness: a caption at least CLOSE probably describes the other image as well, one
below FAR probably does not; in between it is undecided."""

Relevance = NDArray[np.bool_] | Sequence[Collection[int]]
"""[captions, images], true if the caption is true of the image; or for every caption the images of
which it is true."""
Related = Callable[[Any, Any], NDArray[np.bool_]]


@dataclass(frozen=True, eq=False)
class RankedShare:
    """Share of the entries of one direction's lists that are truly relevant."""

    by_rank: NDArray[np.float64]
    """Shares, indexed by rank - 1."""

    @property
    def overall(self) -> float:
        return float(self.by_rank.mean())

    @property
    def by_interval(self) -> dict[tuple[int, int], float]:
        """Map (first rank, last rank) to the share: 1-5, 6-10, 11-20, 21-50, 51-100 and so on."""
        return {
            (first, last): float(self.by_rank[first - 1 : last].mean())
            for first, last in intervals(len(self.by_rank))
        }


@dataclass(frozen=True, eq=False)
class FalseNegatives:
    texts: RankedShare
    """Share in the lists of images."""
    images: RankedShare
    """Share in the lists of captions."""


def intervals(length: int) -> list[tuple[int, int]]:
    """Divide ranks into intervals of growing length, the last one up to `length`.

    >>> intervals(60)
    [(1, 5), (6, 10), (11, 20), (21, 50), (51, 60)]
    """
    round_numbers = [digit * 10**zeros for zeros in range(len(str(length))) for digit in (1, 2, 5)]
    ends = [number for number in round_numbers if 5 <= number < length] + [length]
    return list(zip([1, *(end + 1 for end in ends)], ends, strict=False))


def false_negative_rate(lists: MinedLists, relevance: Relevance) -> FalseNegatives:
    """Measure the share of listed items that are truly relevant, by rank, in both directions."""
    num_images, num_texts = len(lists.texts_of_image), len(lists.images_of_text)
    is_true = _truth(relevance, num_texts, num_images)
    return FalseNegatives(
        texts=_share(lists.texts_of_image, lambda image, text: is_true(text, image)),
        images=_share(lists.images_of_text, is_true),
    )


def _share(listed: Positions, is_relevant: Related) -> RankedShare:
    """Measure the share of entries for which is_relevant(query, listed item) holds."""
    count = np.zeros(listed.shape[1])
    for rows in blocks(len(listed), ROWS):
        query = np.arange(rows.start, rows.stop)[:, None]
        count += is_relevant(query, listed[rows]).sum(0)
    return RankedShare(count / len(listed))


def _truth(relevance: Relevance, num_texts: int, num_images: int) -> Related:
    """Make a function that tells, for arrays of indices, whether texts are true of images."""
    if isinstance(relevance, np.ndarray):
        if relevance.shape != (num_texts, num_images) or relevance.dtype != np.bool_:
            raise ValueError(
                f"relevance must be a boolean array [captions, images] of shape "
                f"{[num_texts, num_images]}, got {relevance.dtype} of shape {list(relevance.shape)}"
            )
        return lambda text, image: relevance[text, image]
    if len(relevance) != num_texts:
        raise ValueError(f"relevance has {len(relevance)} entries for {num_texts} captions")
    pairs = [text * num_images + image for text, own in enumerate(relevance) for image in own]
    codes = np.sort(np.array(pairs, np.int64))
    return lambda text, image: np.isin(text * np.int64(num_images) + image, codes)


@dataclass(frozen=True)
class Suspect:
    """A listed negative that may be a positive."""

    image: int
    caption: int
    score: float
    positive_score: float
    """Score of the caption with its own image."""


def most_suspicious(lists: MinedLists, num: int) -> list[Suspect]:
    """List the pairs that score highest relative to their caption and its own image.

    Pairs come from both directions, each once, the most suspicious first, for manual inspection.
    """
    if num < 1:
        raise ValueError(f"num is {num}; use at least 1")
    positive = lists.positive_scores.astype(np.float32)
    parts = [np.zeros((0, 3))]
    for rows in blocks(len(lists.texts_of_image), ROWS):
        texts = lists.texts_of_image[rows]
        images = np.arange(rows.start, rows.stop)[:, None]
        parts.append(_highest(texts, images, lists.text_scores[rows], positive, num))
    for rows in blocks(len(lists.images_of_text), ROWS):
        texts = np.arange(rows.start, rows.stop)[:, None]
        images = lists.images_of_text[rows]
        parts.append(_highest(texts, images, lists.image_scores[rows], positive, num))
    excess, text, image = np.concatenate(parts).T
    order = np.lexsort((image, text, -excess))
    _, first = np.unique(np.stack([text, image], 1)[order], axis=0, return_index=True)
    return [
        Suspect(int(i), int(t), float(positive[int(t)] + e), float(positive[int(t)]))
        for e, t, i in np.stack([excess, text, image], 1)[order[np.sort(first)[:num]]]
    ]


@dataclass(frozen=True)
class ComparedSuspect:
    """A suspect, with the caption of its image that is most similar."""

    suspect: Suspect
    own_caption: int | None
    """Index of that caption; None if the image has no captions."""
    closeness: float
    """Similarity from 0 to 1, by `CaptionCloseness`."""


@dataclass(frozen=True, eq=False)
class Suspects:
    """Suspected false negatives and errors of the model, separated by what their captions say."""

    likely: list[ComparedSuspect]
    """Probably false negatives: close to a caption of the image itself, the closest first."""
    errors: list[ComparedSuspect]
    """Probably errors of the model, whose captions say something else: those that most exceed the
    score of the caption's own image come first."""


def find_suspects(
    lists: MinedLists,
    captions: Sequence[str],
    image_of_caption: NDArray[np.integer],
    num_likely: int,
    num_errors: int,
) -> Suspects:
    """Search the highest scores for false negatives; no list repeats a caption or image."""
    close = CaptionCloseness(captions, image_of_caption)
    compared = [
        ComparedSuspect(suspect, *close.closest(suspect.caption, suspect.image))
        for suspect in most_suspicious(lists, LOOKED_AT)
    ]
    by_closeness = sorted(compared, key=lambda found: -found.closeness)
    errors = [
        found
        for found in compared
        if found.closeness < FAR and found.suspect.score > found.suspect.positive_score
    ]
    likely = [found for found in by_closeness if found.closeness >= CLOSE]
    return Suspects(_each_once(likely, num_likely), _each_once(errors, num_errors))


def _each_once(found: Sequence[ComparedSuspect], most: int) -> list[ComparedSuspect]:
    """Keep one suspect per caption and image, as many of one would hide the others."""
    captions, images = set[int](), set[int]()
    chosen: list[ComparedSuspect] = []
    for each in found:
        if each.suspect.caption not in captions and each.suspect.image not in images:
            chosen.append(each)
            captions.add(each.suspect.caption)
            images.add(each.suspect.image)
    return chosen[:most]


def _highest(
    texts: NDArray[np.integer],
    images: NDArray[np.integer],
    scores: HalfFloats,
    positive: NDArray[np.float32],
    num: int,
) -> NDArray[np.float64]:
    """Select rows [pairs, 3] of excess, text, image: the `num` highest, and ties with the last."""
    texts, images = np.broadcast_arrays(texts, images)
    excess = scores.astype(np.float32) - positive[texts]
    known = ~np.isnan(excess)
    excess, texts, images = excess[known], texts[known], images[known]
    if len(excess) > num:
        high = excess >= np.partition(excess, -num)[-num]
        excess, texts, images = excess[high], texts[high], images[high]
    return np.stack([excess.astype(np.float64), texts, images], axis=1)
