"""Training on shards that are never opened as a whole: the batches of an epoch, from any batch on.

An epoch is a number of samples, and the next epoch continues where it ends. A sample that cannot be
used is reported and replaced by another of its block, so that all batches have the same size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from PIL import Image
from pydantic import Field, PositiveInt

from gradspace.data.batches import Batch
from gradspace.data.cache import place_of
from gradspace.data.captions import Encode
from gradspace.data.dataset import Indices
from gradspace.data.inputs import PictureReading, Reading
from gradspace.data.loader import Loader
from gradspace.data.order import CaptionsPerImage, check_share
from gradspace.data.shards.copied import CopiedShard, RowShard
from gradspace.data.shards.order import Bookmark, StreamOrder
from gradspace.data.shards.reading import UnusableSample
from gradspace.data.shards.store import Shards, ShardSource
from gradspace.parameters import Flag
from gradspace.wording import counted

AtOnce = Annotated[int, Field(gt=0, le=32)]
"""Limited, because their indexes and those of the next ones stay in memory: `store.MOST_KNOWN`."""


@dataclass(frozen=True)
class Streaming:
    """Options of every reader whose training data can be streamed."""

    stream: Flag = False
    epoch_samples: PositiveInt | None = None
    buffer: PositiveInt = 10_000
    shards_at_once: AtOnce = 8
    vocabulary_samples: PositiveInt = 500_000

    def start(self, sources: Sequence[ShardSource], path: Path) -> ShardStream:
        """Make the stream of the shards of a dataset at `path`."""
        if self.epoch_samples is None:
            raise ValueError("data.stream needs data.epoch_samples, the samples per epoch")
        if not sources:
            raise ValueError(f"{path} has no shards for training, so there is nothing to stream")
        return ShardStream(
            # A copy that was removed takes up room for as long as it is open.
            Shards(sources, most_open=2 * self.shards_at_once),
            self.epoch_samples,
            self.buffer,
            self.shards_at_once,
            self.vocabulary_samples,
        )

    def start_copied(
        self, shards: Sequence[RowShard], path: Path, data: str, by_content: bool
    ) -> ShardStream:
        """Make a stream of shards that are copied first; `data` says which data they are."""
        folder = place_of("copies", data)
        most = 3 * self.shards_at_once  # in use, the last ones and the next ones
        copies = [CopiedShard(shard, folder, most, by_content) for shard in shards]
        return self.start(copies, path)


STREAMING = Streaming()
"""The default of a reader: read as a whole."""


@dataclass(frozen=True, eq=False)
class ShardStream:
    """Training samples of a dataset whose shards are streamed."""

    shards: Shards
    epoch_samples: int
    buffer: int
    shards_at_once: int
    vocabulary_samples: int
    """Number of samples whose captions make the vocabulary of a model that reads words."""
    marks: list[Bookmark] = field(default_factory=lambda: [Bookmark()])
    """Starts of the groups that were read in this process, in order."""

    def __str__(self) -> str:
        return f"a stream of {counted(len(self.shards), 'shard')}"

    def batches_of_epoch(self, batch_size: int) -> int:
        """Number of full batches; remaining samples are left for the next epoch."""
        return self.epoch_samples // batch_size

    def bookmark(self, batch_size: int, epoch: int, batch: int) -> Bookmark:
        """Find the last start of a group before a batch, from which the batch is found again."""
        position = (epoch * self.batches_of_epoch(batch_size) + batch) * batch_size
        return max((mark for mark in self.marks if mark.start < position), default=Bookmark())


@dataclass(frozen=True, eq=False)
class StreamPlan:
    """Samples of one batch, or of the part of it that one process has."""

    start: int
    """Position of the first of them in the stream."""
    samples: Indices
    """Shard and number of each, [samples, 1 + SUBSTITUTES, 2]."""
    faults: tuple[str, ...]
    """Problems of the shards that begin with these samples."""


@dataclass(frozen=True)
class StreamPlans:
    """Plans of the batches of an epoch, computed while they are read."""

    stream: ShardStream
    order: StreamOrder
    batch_size: int
    first: int
    """Number of the first batch, counted over all epochs."""
    left: int
    mark: Bookmark
    """Bookmark before the first batch."""
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
        """Yield samples from a position on, one or more batches at a time, with their problems."""
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
    """Batches of a stream; `left_out` lists the unusable samples of the latest one."""

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
    """Make the batches of one epoch from `start_batch` on: every sample once per pass.

    `captions_per_image` captions of each sample are chosen at random. Order, choices and random
    crops depend on the seed and the position in the stream alone, not on the number of workers and
    processes; `rank` of `world_size` gets its part of every batch.
    """
    check_share(batch_size, rank, world_size)
    per_epoch = stream.batches_of_epoch(batch_size)
    if not per_epoch:
        raise ValueError(
            f"batch_size is {batch_size}, and data.epoch_samples {stream.epoch_samples}: an epoch "
            "needs at least one batch"
        )
    if captions_per_image != 1 and any(s.shares_images for s in stream.shards.sources):
        raise ValueError(
            f"training.captions_per_image is {captions_per_image}: a stream of which several rows "
            "are one image needs 1, as rows of a batch already have different captions of it"
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
        ids.append(shards.image_id(shard, number))
        counts.append(len(chosen))
    tokens, lengths = encode(texts)
    image_ids = torch.tensor(ids)
    batch = Batch(
        images=torch.from_numpy(np.stack(pixels)),  # torch would start threads for small copies
        tokens=tokens,
        lengths=lengths,
        image_ids=image_ids,
        text_ids=image_ids.repeat_interleave(torch.tensor(counts)),
        captions=torch.full((len(texts),), -1),  # belong to no split
    )
    return batch, tuple(left_out)


def _usable(
    shards: Shards, samples: Sequence[tuple[int, int]], left_out: list[str]
) -> tuple[tuple[int, int], list[str], Image.Image]:
    """Find a usable sample with its captions and picture; report the planned one if unusable."""
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
        f"{len(reasons)} samples drawn for one place are unusable, the last is {reasons[-1]}; "
        "check that these are the right shards"
    )


def _by_lot(captions: list[str], number: CaptionsPerImage, rng: np.random.Generator) -> list[str]:
    """Choose `number` captions at random, or all if there are fewer, in their order."""
    if number == "all" or number >= len(captions):
        return captions
    return [captions[i] for i in sorted(rng.choice(len(captions), number, replace=False).tolist())]
