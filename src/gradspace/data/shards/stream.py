"""Training on shards that are never opened as a whole: the batches of an epoch, from any point on.

An epoch is a number of samples, and the next one goes on where it ends. A sample that cannot be
used is named, and another one of its block takes its place, so that all batches have one size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from PIL import Image

from gradspace.data.batches import Batch
from gradspace.data.captions import Encode
from gradspace.data.dataset import Indices
from gradspace.data.inputs import PictureReading, Reading
from gradspace.data.loader import Loader
from gradspace.data.order import CaptionsPerImage, check_share
from gradspace.data.shards.order import Bookmark, StreamOrder
from gradspace.data.shards.reading import UnusableSample
from gradspace.data.shards.store import Shards
from gradspace.wording import counted


@dataclass(frozen=True, eq=False)
class ShardStream:
    """The training samples of a dataset whose shards are streamed."""

    shards: Shards
    epoch_samples: int
    buffer: int
    shards_at_once: int
    vocabulary_samples: int
    """Samples whose captions make the vocabulary of a model that reads words."""
    marks: list[Bookmark] = field(default_factory=lambda: [Bookmark()])
    """Beginnings of groups that were read in this process, in order."""

    def __str__(self) -> str:
        return f"a stream of {counted(len(self.shards), 'shard')}"

    def batches_of_epoch(self, batch_size: int) -> int:
        """What is left of an epoch's samples comes in the next one."""
        return self.epoch_samples // batch_size

    def bookmark(self, batch_size: int, epoch: int, batch: int) -> Bookmark:
        """The last beginning of a group before a batch, from which that is found again."""
        position = (epoch * self.batches_of_epoch(batch_size) + batch) * batch_size
        return max((mark for mark in self.marks if mark.start < position), default=Bookmark())


@dataclass(frozen=True, eq=False)
class StreamPlan:
    """The samples of one batch, or of the part of it that one process has."""

    start: int
    """Where in the stream the first of them is."""
    samples: Indices
    """Shard and number, [samples, 1 + SUBSTITUTES, 2]."""
    faults: tuple[str, ...]
    """What was found in the shards that these samples are the first of."""


@dataclass(frozen=True)
class StreamPlans:
    """What the batches of an epoch hold, worked out while they are asked for."""

    stream: ShardStream
    order: StreamOrder
    batch_size: int
    first: int
    """Number of the first batch, counted over all epochs."""
    left: int
    mark: Bookmark
    """Before the first batch."""
    rank: int
    world_size: int

    def __len__(self) -> int:
        return self.left

    def __iter__(self) -> Iterator[StreamPlan]:
        size, at = self.batch_size, self.first * self.batch_size
        mine = slice(*(size * number // self.world_size for number in (self.rank, self.rank + 1)))
        left = self.left
        for rows, faults in self._from(at) if left else ():
            for row in range(0, len(rows) - size + 1, size):
                found = faults if row == 0 and self.rank == 0 else ()
                yield StreamPlan(at + mine.start, rows[row : row + size][mine], tuple(found))
                at, left = at + size, left - 1
                if not left:
                    return

    def _from(self, position: int) -> Iterator[tuple[Indices, list[str]]]:
        """Samples from a position on, a batch or more at a time, with what is wrong around them."""
        rows: list[Indices] = []
        faults: list[str] = []
        waiting = 0
        for group in self.order.groups(self.mark):
            if group.mark > self.stream.marks[-1]:
                self.stream.marks.append(group.mark)
            if group.mark.start >= position:
                faults += group.faults
            for start, samples in self.order.blocks(group):
                fresh = samples[max(position - start, 0) :]
                rows.append(fresh)
                waiting += len(fresh)
                if waiting >= self.batch_size:
                    joined = np.concatenate(rows)
                    yield joined, faults
                    waiting %= self.batch_size
                    rows, faults = [joined[len(joined) - waiting :]], []


@dataclass(frozen=True)
class StreamBatches:
    """Batches of a stream; `left_out` gets what could not be used of the latest one."""

    loader: Loader[tuple[Batch, tuple[str, ...]]]
    left_out: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        for batch, left_out in self.loader:
            self.left_out[:] = left_out
            yield batch


def stream_batches(
    stream: ShardStream,
    encode: Encode,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    captions_per_image: CaptionsPerImage = 1,
    start_batch: int = 0,
    reading: Reading,
    num_workers: int = 0,
    pin_memory: bool = False,
    rank: int = 0,
    world_size: int = 1,
) -> StreamBatches:
    """The batches of one epoch from `start_batch` on: every sample once, before any comes again.

    Of the captions of a sample `captions_per_image` are taken by lot. Order, lots and random crops
    depend on the seed and the place in the stream alone, whatever the number of workers and
    processes; `rank` of `world_size` gets its part of every batch.
    """
    check_share(batch_size, rank, world_size)
    per_epoch = stream.batches_of_epoch(batch_size)
    if not per_epoch:
        raise ValueError(
            f"batch_size is {batch_size}, and data.epoch_samples {stream.epoch_samples}: an epoch "
            "needs a batch at least"
        )
    if not isinstance(reading, PictureReading):
        raise ValueError(f"a stream has pictures, and the model reads {reading.kind}")
    plans = StreamPlans(
        stream=stream,
        order=StreamOrder(stream.shards, seed, stream.buffer, stream.shards_at_once),
        batch_size=batch_size,
        first=epoch * per_epoch + start_batch,
        left=per_epoch - start_batch,
        mark=stream.bookmark(batch_size, epoch, start_batch),
        rank=rank,
        world_size=world_size,
    )
    make = partial(_make, stream.shards, encode, reading, captions_per_image, seed)
    return StreamBatches(Loader(make, plans, num_workers, True, pin_memory))


def _make(
    shards: Shards,
    encode: Encode,
    reading: PictureReading,
    captions_per_image: CaptionsPerImage,
    seed: int,
    plan: StreamPlan,
) -> tuple[Batch, tuple[str, ...]]:
    pixels, texts, ids, counts = [], [], [], []
    left_out = list(plan.faults)
    for place, samples in enumerate(plan.samples.tolist(), start=plan.start):
        (shard, number), captions, picture = _usable(shards, samples, left_out)
        rng = np.random.default_rng((seed, place, 1))
        chosen = _by_lot(captions, captions_per_image, rng)
        pixels.append(reading.pixels(picture, rng).numpy())
        texts += chosen
        ids.append(shard << 32 | number)
        counts.append(len(chosen))
    tokens, lengths = encode(texts)
    image_ids = torch.tensor(ids)
    batch = Batch(
        images=torch.from_numpy(np.stack(pixels)),  # torch would start threads for little copies
        tokens=tokens,
        lengths=lengths,
        image_ids=image_ids,
        text_ids=image_ids.repeat_interleave(torch.tensor(counts)),
        captions=torch.full((len(texts),), -1),  # in no split
    )
    return batch, tuple(left_out)


def _usable(
    shards: Shards, samples: Sequence[tuple[int, int]], left_out: list[str]
) -> tuple[tuple[int, int], list[str], Image.Image]:
    """The first sample that can be used, its captions and its picture; names the planned one."""
    reasons: list[str] = []
    for shard, number in samples:
        try:
            found = shards.captions(shard, number), shards.picture(shard, number)
        except UnusableSample as error:
            reasons.append(f"{shards.name(shard, number)}: {error}")
            continue
        left_out += reasons[:1]
        return (shard, number), *found
    raise ValueError(
        f"{len(reasons)} samples drawn for one place cannot be used, the last is {reasons[-1]}; "
        "are these the right shards?"
    )


def _by_lot(captions: list[str], number: CaptionsPerImage, rng: np.random.Generator) -> list[str]:
    """So many captions, or all there are, in their order."""
    if number == "all" or number >= len(captions):
        return captions
    return [captions[i] for i in sorted(rng.choice(len(captions), number, replace=False).tolist())]
