"""Embedding of a collection into shards, by any number of processes and machines together."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradspace.data.loader import Loader
from gradspace.indexes.claims import claimed
from gradspace.indexes.collection import Collection
from gradspace.indexes.contract import Item
from gradspace.indexes.index import check_reads, model_digest
from gradspace.indexes.make import collection_of, default_workers
from gradspace.indexes.reading import batch_maker
from gradspace.indexes.shards import (
    MANIFEST,
    ShardPlan,
    begin,
    digest_of,
    read_plan,
    write_manifest,
    write_shard,
)
from gradspace.progress import Progress, Show, silently
from gradspace.runs.embed import embed_captions
from gradspace.runs.model import LoadedModel, as_model
from gradspace.runs.represent import BATCH, images_at_once, share
from gradspace.runs.system import System
from gradspace.scores.evaluating import evaluating

WAIT = 1.0
"""Seconds between two checks of shards that other processes are filling."""


@dataclass(frozen=True)
class Filled:
    """Summary of what one process has done, and of all shards."""

    plan: ShardPlan
    own: int
    """Number of shards that this process has filled."""
    manifest: dict[str, Any]


def embed_shards(
    model: LoadedModel | str | Path,
    source: str | Path | None = None,
    *,
    out: str | Path,
    shards: int | None = None,
    split: str | None = None,
    features: str | Path | None = None,
    num_workers: int | None = None,
    device: str | None = None,
    show: Show = silently,
) -> Filled:
    """Fill a folder with the embeddings of a collection, together with other processes.

    Started on any number of machines that share the folder, each shard is filled once. Shards
    that a killed process had begun are begun anew by another; complete shards are kept. The vectors
    are those of `embed_split`, bit for bit, on any process.

    Args:
        source: a folder of photos, a text file with one caption per line, or a dataset; by default
            the dataset of the run.
        shards: their number; may be omitted if the folder has some already.
    """
    folder = Path(out)
    loaded = as_model(model, device)
    collection = collection_of(loaded.source, source, split, None, features)
    filling = Filling.begin(folder, loaded, collection, shards, num_workers)
    with show("embedding") as progress:
        own = filling.run(progress)
    return Filled(filling.plan, own, write_manifest(folder, filling.plan))


@dataclass(frozen=True, eq=False)
class Filling:
    """One of the processes that fill a folder."""

    folder: Path
    plan: ShardPlan
    collection: Collection
    system: System

    @staticmethod
    def begin(
        folder: Path,
        loaded: LoadedModel,
        collection: Collection,
        shards: int | None = None,
        num_workers: int | None = None,
    ) -> Filling:
        """Write the plan, or check it against that of the folder."""
        check_reads(loaded.system, collection, folder)
        system, split = loaded.system, collection.split
        model = loaded.source
        plan = ShardPlan(
            model=str(model.absolute() if model.exists() else model),
            digest=model_digest(model),
            width=system.model.width,
            collection=dict(collection.record),
            num_images=len(split.image_names),
            num_captions=len(split.captions),
            items=digest_of(collection),
            num_shards=shards or read_plan(folder).num_shards,
        )
        begin(folder, plan)
        if num_workers is None:
            num_workers = default_workers(system.device.type)
        return Filling(folder, plan, collection, replace(system, num_workers=num_workers))

    def run(self, progress: Progress | None = None) -> int:
        """Fill shards that no other process fills, until all exist; return how many it filled."""
        own = 0
        while missing := self.missing():
            filled = sum(self.fill(number, progress) for number in missing)
            own += filled
            if not filled:
                time.sleep(WAIT)  # other processes are busy with them, and may be lost
        return own

    def missing(self) -> list[int]:
        paths = enumerate(self.plan.shards(self.folder))
        return [number for number, path in paths if not path.exists()]

    def fill(self, number: int, progress: Progress | None = None) -> bool:
        """Fill a shard, unless it exists or another process is filling it."""
        path = self.plan.shard(self.folder, number)
        if path.exists():
            return False
        try:
            with claimed(path) as is_mine:
                if not is_mine or path.exists():
                    return False
                self._clear(path)
                items, vectors, broken = self._embed(number, progress)
                write_shard(path, self.plan, items, vectors.numpy(), broken)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ValueError(
                f"there is no space left for {self.folder}: the shards in it are complete; make "
                "room and start again"
            ) from error
        return True

    def _clear(self, path: Path) -> None:
        """Delete an outdated manifest, and files of killed processes."""
        (self.folder / MANIFEST).unlink(missing_ok=True)
        for part in self.folder.glob(f".{path.name}.*"):
            if ".claim" not in part.suffixes:
                part.unlink(missing_ok=True)

    @torch.inference_mode()
    def _embed(
        self, number: int, progress: Progress | None
    ) -> tuple[list[Item], Tensor, list[str]]:
        count = self.plan.num_shards
        images = range(*share(self.plan.num_images, number, count))
        first, last = share(self.plan.num_captions, number, count)
        items: list[Item] = []
        vectors = [torch.zeros(0, self.plan.width)]
        broken: list[str] = []
        tell = self._teller(progress)
        with evaluating(self.system.model):
            for batch in self._batches(images):
                broken += batch.broken.values()
                if batch.items:
                    items += batch.items
                    inputs = batch.inputs.to(self.system.device)
                    vectors.append(self.system.model.embed_images(inputs).float().cpu())
                tell(len(items))
            for start in range(first, last, BATCH):
                captions = self._captions(start, min(start + BATCH, last))
                items += captions
                texts = [item.text for item in captions]
                vectors.append(embed_captions(self.system, texts))
                tell(len(items))
        return items, torch.cat(vectors), broken

    def _batches(self, images: range) -> Loader[Any]:
        size = images_at_once(self.system)
        make = batch_maker(self.collection, self.system, images, size=size, thumbnails=False)
        return Loader(
            make,
            range(0, len(images), size),
            self.system.num_workers,
            in_processes=self.system.reading.kind != "features",
        )

    def _captions(self, start: int, stop: int) -> Sequence[Item]:
        offset = self.plan.num_images
        return self.collection.items[offset + start : offset + stop]

    def _teller(self, progress: Progress | None) -> Callable[[int], None]:
        """Make a function that reports progress over all items, as if shards were of equal size."""
        if progress is None:
            return lambda done: None
        total = self.plan.num_images + self.plan.num_captions
        there = (self.plan.num_shards - len(self.missing())) * total // self.plan.num_shards
        return lambda done: progress(min(total, there + done), total)
