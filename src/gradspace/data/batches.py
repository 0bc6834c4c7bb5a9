"""Tensors of a split: training batches in random order, evaluation batches in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import torch
from torch import Tensor

from gradspace.data.captions import Encode, EncodedCaptions
from gradspace.data.dataset import Split
from gradspace.data.inputs import FEATURES, Reading
from gradspace.data.loader import Loader
from gradspace.data.order import CaptionsPerImage, Plan, epoch_order


@dataclass(frozen=True)
class Batch:
    """Images and captions; equal ids belong together."""

    images: Tensor
    """Pixels [n, 3, height, width], uint8 or float32; features [n, regions, width] or [n, width],
    float32; passages int64 [n, 1 + words], as `PassageReading` makes them"""
    tokens: Tensor
    """int64 [m, words], padded with 0"""
    lengths: Tensor
    """int64 [m]"""
    image_ids: Tensor
    """int64 [n]: index of the image in the split"""
    text_ids: Tensor
    """int64 [m]: index of the caption's image in the split"""
    captions: Tensor
    """int64 [m]: index of the caption in the split"""

    def to(self, device: torch.device | str, non_blocking: bool = True) -> Batch:
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        return self._each(lambda tensor: tensor if tensor.is_cuda else tensor.pin_memory())

    def image_of_text(self) -> Tensor | None:
        """int64 [m]: the row of each caption's image; None where it is the caption's own row."""
        if torch.equal(self.image_ids, self.text_ids):
            return None
        ids, order = self.image_ids.sort()
        return order[torch.searchsorted(ids, self.text_ids)]

    def in_parts(self, size: int) -> list[Batch]:
        """Split into parts of at most `size` images and `size` captions, each image with its own.

        Captions are sorted by image, so that a part is a run of rows on both sides.
        """
        rows = self.image_of_text()
        counts = torch.ones_like(self.image_ids) if rows is None else rows.bincount()
        ends = [0, *counts.cumsum(0).tolist()]
        step = max(1, size // int(counts.max()))
        starts = range(0, len(counts), step)
        return [self._part(i, min(i + step, len(counts)), ends) for i in starts]

    def _part(self, start: int, stop: int, ends: Sequence[int]) -> Batch:
        images, texts = slice(start, stop), slice(ends[start], ends[stop])
        return Batch(
            images=self.images[images],
            tokens=self.tokens[texts],
            lengths=self.lengths[texts],
            image_ids=self.image_ids[images],
            text_ids=self.text_ids[texts],
            captions=self.captions[texts],
        )

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return Batch(**{field.name: change(getattr(self, field.name)) for field in fields(self)})


def training_batches(
    split: Split,
    captions: EncodedCaptions,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    captions_per_image: CaptionsPerImage = 1,
    start_batch: int = 0,
    reading: Reading = FEATURES,
    num_workers: int = 0,
    pin_memory: bool = False,
    rank: int = 0,
    world_size: int = 1,
    extend: Callable[[Plan], Plan] | None = None,
) -> Loader[Batch]:
    """Make the batches of one epoch from `start_batch` on, in the order set by `seed` and `epoch`.

    `reading` turns images, features or passages into tensors.
    `captions_per_image` is explained at `epoch_order`. With one, row i of the images belongs to row
    i of the captions, and an image with two of its captions in a batch appears twice, as two rows
    with equal ids and two random crops: batches keep their shape, and equal ids make all of them
    positives. With more, every image is one row.

    Random crops depend on (seed, epoch, item) alone, not on the number of workers or the start.
    Process `rank` of `world_size` gets its part of every batch, to which `extend` may add rows.
    """
    plans = epoch_order(
        split,
        batch_size=batch_size,
        captions_per_image=captions_per_image,
        seed=seed,
        epoch=epoch,
        rank=rank,
        world_size=world_size,
    )
    if not 0 <= start_batch <= len(plans):
        raise ValueError(f"start_batch is {start_batch}; the epoch has {len(plans)} batches")
    reading.check(split)
    make = partial(_training_batch, split, captions, plans, reading, (seed, epoch), extend)
    left = range(start_batch, len(plans))
    return Loader(make, left, num_workers, reading.kind != "features", pin_memory)


def image_batches(
    split: Split,
    *,
    batch_size: int,
    reading: Reading = FEATURES,
    start: int = 0,
    stop: int | None = None,
    num_workers: int = 0,
    pin_memory: bool = False,
) -> Loader[Tensor]:
    """Make batches of images start .. stop - 1 of a split, in order, as the model reads them."""
    reading.check(split)
    stop = len(split.image_names) if stop is None else stop
    starts = range(start, stop, batch_size)
    make = partial(_image_batch, split, reading, batch_size, stop)
    return Loader(make, starts, num_workers, reading.kind != "features", pin_memory)


def text_batches(
    split: Split,
    encode: Encode,
    *,
    batch_size: int,
    start: int = 0,
    stop: int | None = None,
    num_workers: int = 0,
    pin_memory: bool = False,
) -> Loader[tuple[Tensor, Tensor]]:
    """Make batches of tokens and lengths of captions start .. stop - 1 of a split, in order."""
    stop = len(split.captions) if stop is None else stop
    starts = range(start, stop, batch_size)
    make = partial(_text_batch, split, encode, batch_size, stop)
    return Loader(make, starts, num_workers, pin_memory=pin_memory)


def _training_batch(
    split: Split,
    captions: EncodedCaptions,
    plans: Sequence[Plan],
    reading: Reading,
    seeds: tuple[int, int],
    extend: Callable[[Plan], Plan] | None,
    number: int,
) -> Batch:
    plan = extend(plans[number]) if extend else plans[number]
    tokens, lengths = captions.gather(plan.captions)
    return Batch(
        images=reading.load(split, plan.images, [(*seeds, 1, i) for i in plan.items.tolist()]),
        tokens=tokens,
        lengths=lengths,
        image_ids=torch.tensor(plan.images),
        text_ids=torch.tensor(split.image_of_caption[plan.captions]),
        captions=torch.tensor(plan.captions),
    )


def _image_batch(split: Split, reading: Reading, batch_size: int, stop: int, start: int) -> Tensor:
    indices = np.arange(start, min(start + batch_size, stop))
    return reading.load(split, indices, [(index,) for index in indices.tolist()])


def _text_batch(
    split: Split, encode: Encode, batch_size: int, stop: int, start: int
) -> tuple[Tensor, Tensor]:
    return encode(split.captions[start : min(start + batch_size, stop)])
