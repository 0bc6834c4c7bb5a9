"""Images of a collection as model input, prepared in any process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradspace.data.dataset import Split
from gradspace.data.inputs import PictureReading, Reading
from gradspace.indexes.collection import Collection, with_facts
from gradspace.indexes.contract import Item
from gradspace.indexes.thumbnails import small
from gradspace.runs.system import System


@dataclass(frozen=True, eq=False)
class ImageBatch:
    """Images that are ready to be embedded."""

    places: list[int]
    """Places in the collection."""
    items: list[Item]
    inputs: Tensor
    thumbnails: list[bytes | None]
    broken: dict[int, str]
    """Reasons for broken images, by place."""


def batch_maker(
    collection: Collection,
    system: System,
    places: Sequence[int],
    *,
    size: int,
    thumbnails: bool = True,
) -> Callable[[int], ImageBatch]:
    """Make a function for `Loader`: the batch of up to `size` images from `places[start]` on."""
    split, items, reading = collection.split, collection.items, system.reading
    return partial(_make_batch, split, items, reading, places, size, thumbnails)


def _make_batch(
    split: Split,
    items: Sequence[Item],
    reading: Reading,
    places: Sequence[int],
    size: int,
    thumbnails: bool,
    start: int,
) -> ImageBatch:
    chosen = list(places[start : start + size])
    made: list[Item] = []
    inputs: list[NDArray[np.float32]] = []
    pictures: list[bytes | None] = []
    broken: dict[int, str] = {}
    rng = np.random.default_rng(0)
    for place in chosen:
        try:
            picture = split.images.load(place) if split.images is not None else None
        except ValueError as error:
            broken[place] = str(error)
            continue
        made.append(items[place] if picture is None else with_facts(items[place], picture))
        pictures.append(small(picture) if picture is not None and thumbnails else None)
        if isinstance(reading, PictureReading):
            assert picture is not None
            inputs.append(reading.pixels(picture, rng).numpy())
    if isinstance(reading, PictureReading):
        given = torch.from_numpy(np.stack(inputs)) if inputs else torch.empty(0)
    else:
        kept = np.array([place for place in chosen if place not in broken], np.int64)
        given = reading.load(split, kept, [])
    return ImageBatch(chosen, made, given, pictures, broken)
