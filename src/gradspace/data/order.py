"""The images and captions of each training batch: a pure function of seed and epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from gradspace.data.dataset import Indices, Split

CaptionsPerImage = int | Literal["all"]


@dataclass(frozen=True, eq=False)
class Plan:
    """Contents of one batch."""

    images: Indices
    captions: Indices
    items: Indices
    """One number per image, different if an image comes twice: the seeds of random crops."""


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
    """List the batches of one epoch, or the part of each that process `rank` gets.

    The parts are as even as possible, and together they are the batch in its order.

    With one caption per image the epoch visits every caption once, together with its image, and
    `batch_size` counts captions (VSE++). With more, or "all", it visits every image once with that
    many of its captions, and `batch_size` counts images (SmoothAP). Items that do not fill a last
    batch are left for another epoch.
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
    """Choose `number` captions of every image at random, or all if it has fewer."""
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
    """Raise a ValueError unless every process has a part of a batch."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank}; {world_size} processes are numbered from 0")
    if batch_size < world_size:
        raise ValueError(
            f"batch_size {batch_size} must be at least the number of processes, {world_size}; use "
            "a larger batch or fewer processes"
        )
