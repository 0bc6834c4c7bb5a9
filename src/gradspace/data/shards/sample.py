"""A sample of a stream as an ordinary split, for analyses of what was learnt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from PIL import Image

from gradspace.data.dataset import Dataset, Split, make_split
from gradspace.data.problems import broken_items, without
from gradspace.data.shards.order import Bookmark, StreamOrder
from gradspace.data.shards.reading import UnusableSample
from gradspace.data.shards.store import Shards
from gradspace.data.shards.stream import ShardStream
from gradspace.progress import Progress

NUM_SAMPLES = 10_000
"""Number of samples that are analysed of a stream."""


def sampled(dataset: Dataset, progress: Progress | None = None) -> Dataset:
    """Replace the stream of a dataset by a split of its first usable samples, in random shards."""
    if dataset.stream is None:
        return dataset
    split = _split(dataset.stream)
    alone = Dataset(dataset.name, {split.name: split})
    return without(alone, broken_items(alone, progress))


def _split(stream: ShardStream) -> Split:
    places: dict[int, tuple[int, int]] = {}
    captions: dict[int, list[str]] = {}
    for read, (shard, number) in enumerate(_first_pass(stream)):
        if read == NUM_SAMPLES:
            break
        try:
            texts = stream.shards.captions(shard, number)
        except UnusableSample:  # training reports it
            continue
        image = stream.shards.image_id(shard, number)
        places.setdefault(image, (shard, number))
        captions.setdefault(image, []).extend(texts)
    names = [stream.shards.name(*place) for place in places.values()]
    described = list(zip(names, captions.values(), strict=True))
    return make_split("train", described, PlacedImages(stream.shards, [*places.values()]))


def _first_pass(stream: ShardStream) -> Iterator[tuple[int, int]]:
    order = StreamOrder(stream.shards, 0, stream.buffer, stream.shards_at_once)
    for group in order.groups(Bookmark()):
        if group.mark.passed:
            return
        for _, samples in order.blocks(group):
            yield from map(tuple, samples[:, 0].tolist())


@dataclass(frozen=True)
class PlacedImages:
    """Pictures of shards by their places."""

    shards: Shards
    places: Sequence[tuple[int, int]]

    def __len__(self) -> int:
        return len(self.places)

    def load(self, index: int) -> Image.Image:
        try:
            return self.shards.picture(*self.places[index])
        except UnusableSample as error:
            raise ValueError(f"{self.shards.name(*self.places[index])}: {error}") from error
