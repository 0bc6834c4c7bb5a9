"""From a collection to an index: what is new or has changed is embedded, what is gone is removed.

What is embedded is stored every few seconds. An interrupted build, started again, finds what it has
stored as it finds the items of any earlier one, and goes on with the rest.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradspace.data.dataset import Split, gather_features
from gradspace.data.inputs import PictureReading, Pixels
from gradspace.data.loader import Loader
from gradspace.files import only_writer
from gradspace.indexes.collection import Collection, with_facts
from gradspace.indexes.contract import Item
from gradspace.indexes.index import Index
from gradspace.indexes.thumbnails import small
from gradspace.progress import Progress
from gradspace.runs.embed import embed_captions
from gradspace.runs.system import System

IMAGES_AT_ONCE = 64
CAPTIONS_AT_ONCE = 256
SECONDS_PER_SAVE = 20.0
MOST_PER_SAVE = 8192


@dataclass
class IndexUpdate:
    """What a build has done."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    broken: list[str] = field(default_factory=list)
    """One sentence for each image that was left out."""


def update_index(
    index: Index,
    collection: Collection,
    system: System,
    *,
    num_workers: int = 0,
    save_every: float = SECONDS_PER_SAVE,
    progress: Progress | None = None,
) -> IndexUpdate:
    """Bring an index up to date with its collection."""
    with only_writer(index.folder):
        try:
            return _Build(index, collection, system, num_workers, save_every, progress).run()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise ValueError(
                f"there is no space left for {index.folder}: what was indexed before is still "
                "there; make room and start again"
            ) from error


@dataclass(frozen=True, eq=False)
class _Batch:
    """Images that are ready to be embedded."""

    places: list[int]
    """In the collection."""
    items: list[Item]
    inputs: Tensor
    thumbnails: list[bytes | None]
    broken: dict[int, str]
    """By their place."""


@dataclass
class _Build:
    index: Index
    collection: Collection
    system: System
    num_workers: int
    save_every: float
    progress: Progress | None
    outcome: IndexUpdate = field(default_factory=IndexUpdate)
    known: dict[str, str] = field(default_factory=dict)
    waiting: list[tuple[Item, NDArray[np.float16]]] = field(default_factory=list)
    saved_at: float = field(default_factory=time.monotonic)
    done: int = 0
    total: int = 0

    def run(self) -> IndexUpdate:
        items = self.collection.items
        self.known = self.index.engine.fingerprints()
        self.outcome.broken += self.collection.problems
        self._remove(set(self.known) - {item.key for item in items})
        new = [i for i, item in enumerate(items) if self.known.get(item.key) != item.fingerprint]
        self.outcome.unchanged = len(items) - len(new)
        self.total = len(new)
        self._tell(0)
        num_images = len(self.collection.split.image_names)
        try:
            self._embed_images([place for place in new if place < num_images])
            self._embed_captions([place for place in new if place >= num_images])
        finally:  # also of an interrupted build everything that is embedded is kept
            self._save()
        return self.outcome

    @torch.inference_mode()
    def _embed_images(self, places: Sequence[int]) -> None:
        make = _batch_maker(self.collection, self.system, places)
        starts = range(0, len(places), IMAGES_AT_ONCE)
        for batch in Loader(make, starts, self.num_workers, in_processes=True):
            for place, reason in batch.broken.items():
                self._leave_out(self.collection.items[place], reason)
            for item, picture in zip(batch.items, batch.thumbnails, strict=True):
                if picture is not None:
                    self.index.thumbnails.write(item.key, picture)
            if batch.items:
                inputs = batch.inputs.to(self.system.device)
                self._store(batch.items, self.system.model.embed_images(inputs))
            self._tell(len(batch.places))

    def _embed_captions(self, places: Sequence[int]) -> None:
        for start in range(0, len(places), CAPTIONS_AT_ONCE):
            some = [self.collection.items[i] for i in places[start : start + CAPTIONS_AT_ONCE]]
            self._store(some, embed_captions(self.system, [item.text for item in some]))
            self._tell(len(some))

    def _store(self, items: Sequence[Item], vectors: Tensor) -> None:
        rounded = vectors.float().cpu().numpy().astype(np.float16)
        self.waiting += zip(items, rounded, strict=True)
        waited = time.monotonic() - self.saved_at
        if waited >= self.save_every or len(self.waiting) >= MOST_PER_SAVE:
            self._save()

    def _save(self) -> None:
        if self.waiting:
            items, vectors = zip(*self.waiting, strict=True)
            self.index.engine.put(items, np.stack(vectors))
            changed = sum(item.key in self.known for item in items)
            self.outcome.changed += changed
            self.outcome.added += len(items) - changed
        self.waiting.clear()
        self.saved_at = time.monotonic()

    def _leave_out(self, item: Item, reason: str) -> None:
        self.outcome.broken.append(reason)
        if item.key in self.known:  # what was found before is not this picture any more
            self._remove({item.key})

    def _remove(self, keys: set[str]) -> None:
        if keys:
            self.index.engine.remove(sorted(keys))
            for key in keys:
                self.index.thumbnails.remove(key)
            self.outcome.removed += len(keys)

    def _tell(self, more: int) -> None:
        self.done += more
        if self.progress:
            self.progress(self.done, self.total)


def _batch_maker(
    collection: Collection, system: System, places: Sequence[int]
) -> Callable[[int], _Batch]:
    reading = system.reading
    pixels = reading.pixels if isinstance(reading, PictureReading) else None
    return partial(_make_batch, collection.split, collection.items, pixels, places)


def _make_batch(
    split: Split,
    items: Sequence[Item],
    pixels: Pixels | None,
    places: Sequence[int],
    start: int,
) -> _Batch:
    chosen = list(places[start : start + IMAGES_AT_ONCE])
    made: list[Item] = []
    inputs: list[NDArray[np.float32]] = []
    thumbnails: list[bytes | None] = []
    broken: dict[int, str] = {}
    rng = np.random.default_rng(0)
    for place in chosen:
        try:
            picture = split.images.load(place) if split.images is not None else None
        except ValueError as error:
            broken[place] = str(error)
            continue
        made.append(items[place] if picture is None else with_facts(items[place], picture))
        thumbnails.append(None if picture is None else small(picture))
        if pixels is not None:
            assert picture is not None
            inputs.append(pixels(picture, rng).numpy())
    if pixels is None:
        assert split.features is not None
        kept = np.array([place for place in chosen if place not in broken], np.int64)
        given = torch.from_numpy(gather_features(split.features, kept))
    else:
        given = torch.from_numpy(np.stack(inputs)) if inputs else torch.empty(0)
    return _Batch(chosen, made, given, thumbnails, broken)
