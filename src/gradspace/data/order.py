"""Which images and captions are in which training batch: a pure function of seed and epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from gradspace.data.dataset import Indices, Split

CaptionsPerImage = int | Literal["all"]


@dataclass(frozen=True, eq=False)
class Plan:
    """What one batch holds."""

    images: Indices
    captions: Indices
    items: Indices
    """One per image, different ones where an image comes twice: the seeds of random crops."""


def epoch_order(
    split: Split,
    *,
    batch_size: int,
    captions_per_image: CaptionsPerImage,
    seed: int,
    epoch: int,
    rank: int = 0,
    world_size: int = 1,
) -> list[Plan]:
    """The batches of one epoch, or of each the part that process `rank` has of it.

    The parts are as even as they can be, and together they are the batch in its order.

    With one caption per image the epoch visits every caption once, together with its image, and
    `batch_size` counts captions (VSE++). With more, or "all", it visits every image once with that
    many of its captions, and `batch_size` counts images (SmoothAP). What does not fill a last batch
    is left for another epoch.
    """
    rng = np.random.default_rng([seed, epoch, 0])
    one = captions_per_image == 1
    num_items = len(split.captions if one else split.image_names)
    _check(split, batch_size, captions_per_image, num_items, rank, world_size)
    items = rng.permutation(num_items)
    by_image = [] if one else _choose_captions(split, captions_per_image, rng)
    first, after = (batch_size * number // world_size for number in (rank, rank + 1))
    plans = []
    for start in range(0, num_items - batch_size + 1, batch_size):
        mine = items[start + first : start + after]
        if one:
            plans.append(Plan(split.image_of_caption[mine], mine, mine))
        else:
            plans.append(Plan(mine, np.concatenate([by_image[image] for image in mine]), mine))
    return plans


def _choose_captions(
    split: Split, number: CaptionsPerImage, rng: np.random.Generator
) -> list[Indices]:
    """For every image `number` of its captions by lot, or all it has if these are fewer."""
    by_lot = np.lexsort((rng.random(len(split.captions)), split.image_of_caption))
    images = split.image_of_caption[by_lot]
    parts = np.split(by_lot, np.searchsorted(images, np.arange(1, len(split.image_names))))
    return [np.sort(part if number == "all" else part[:number]) for part in parts]


def _check(
    split: Split,
    batch_size: int,
    captions_per_image: CaptionsPerImage,
    num_items: int,
    rank: int,
    world_size: int,
) -> None:
    if captions_per_image != "all" and not (
        isinstance(captions_per_image, int) and captions_per_image >= 1
    ):
        raise ValueError(f"captions_per_image is {captions_per_image!r}; use 1 or more, or 'all'")
    if not 1 <= batch_size <= num_items:
        what = "captions" if captions_per_image == 1 else "images"
        raise ValueError(
            f"batch_size is {batch_size}; split {split.name!r} has {num_items} {what} to fill it"
        )
    check_share(batch_size, rank, world_size)


def check_share(batch_size: int, rank: int, world_size: int) -> None:
    """That every one of several processes has a part of a batch."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank}; {world_size} processes are numbered from 0")
    if batch_size < world_size:
        raise ValueError(
            f"batch_size {batch_size} must be at least the number of processes, {world_size}; take "
            "a larger batch or fewer processes"
        )
