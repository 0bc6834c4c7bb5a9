"""Index update: new and changed items of a collection are embedded, missing ones are removed.

Embedded items are stored every few seconds. An interrupted build, started again, finds them like
the items of any earlier build, and continues with the rest.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradspace.data.loader import Loader
from gradspace.files import only_writer
from gradspace.indexes.collection import Collection
from gradspace.indexes.contract import Item
from gradspace.indexes.index import Index
from gradspace.indexes.reading import batch_maker
from gradspace.progress import Progress
from gradspace.runs.embed import embed_captions
from gradspace.runs.system import System

IMAGES_AT_ONCE = 64
CAPTIONS_AT_ONCE = 256
SECONDS_PER_SAVE = 20.0
MOST_PER_SAVE = 8192


@dataclass
class IndexUpdate:
    """Summary of a build."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    broken: list[str] = field(default_factory=list)
    """A sentence for each image that was left out."""


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
    with writing(index):
        return _Build(index, collection, system, num_workers, save_every, progress).run()


@contextmanager
def writing(index: Index) -> Iterator[None]:
    """Lock an index for writing; a full disk is reported in a sentence."""
    with only_writer(index.folder):
        try:
            yield
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise ValueError(
                f"there is no space left for {index.folder}: what was indexed before is still "
                "there; make room and start again"
            ) from error


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
        finally:  # an interrupted build keeps what it has embedded, too
            self._save()
        return self.outcome

    @torch.inference_mode()
    def _embed_images(self, places: Sequence[int]) -> None:
        make = batch_maker(self.collection, self.system, places, size=IMAGES_AT_ONCE)
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
        if item.key in self.known:  # the stored vector is of an earlier picture
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
