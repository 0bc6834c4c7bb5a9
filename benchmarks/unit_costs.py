"""`python -m benchmarks.unit_costs`: what a million items cost on one CPU core, before any GPU.

CPU seconds of one process with one thread, so that other work on the machine counts for little.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from PIL import Image

from gradspace.indexes.claims import claimed
from gradspace.indexes.collection import Collection, caption_file
from gradspace.indexes.local import LocalEngine
from gradspace.indexes.shards import ShardPlan, digest_of, open_shard, write_shard
from gradspace.models.prepare.pictures import CentreCrop

MILLION = 1_000_000
CLAIMS = 2_000
AT_ONCE = 8192
"""Items that an index takes in one go, as `gradspace index` gives them."""


@dataclass
class Costs:
    """Lines of a table, of a million items each."""

    rows: list[tuple[str, float, str]] = field(default_factory=list)

    @contextmanager
    def of(
        self, what: str, count: int, place: Path | None = None, *, keeps: bool = False
    ) -> Iterator[None]:
        """Measure what is done meanwhile, with `count` items; what it leaves on disk, or keeps."""
        begun, held = time.process_time(), _held()
        yield
        spent = (time.process_time() - begun) * MILLION / count
        size = _held() - held if keeps else 0 if place is None else _size(place)
        where = " in memory" if keeps else " on disk"
        gigabytes = f"{size * MILLION / count / 1e9:.2f}{where}" if keeps or place else ""
        self.rows.append((what, spent, gigabytes))

    def markdown(self) -> str:
        lines = ["| a million | CPU seconds | GB |", "|---|---:|---:|"]
        return "\n".join(lines + [f"| {what} | {s:,.1f} | {g} |" for what, s, g in self.rows])


def _held() -> int:
    """Bytes that this process holds, after what is of no use has gone."""
    gc.collect()
    pages = Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _size(place: Path) -> int:
    files = place.rglob("*") if place.is_dir() else [place]
    return sum(file.stat().st_size for file in files if file.is_file())


def main(
    count: Annotated[int, typer.Option(help="Items; figures are per million.")] = 100_000,
    width: Annotated[int, typer.Option(help="Of a vector.")] = 512,
    pictures: Annotated[int, typer.Option(help="To decode.")] = 256,
) -> None:
    torch.set_num_threads(1)
    costs = Costs()
    with tempfile.TemporaryDirectory() as folder:
        decode(costs, Path(folder), pictures)
        store(costs, Path(folder), count, width)
    print(costs.markdown())


def decode(costs: Costs, folder: Path, count: int) -> None:
    """JPEG photos of 500 x 375, as on Flickr, to the middle 224 pixels of a CLIP."""
    random = np.random.default_rng(0)
    paths = [folder / f"{number}.jpg" for number in range(16)]
    for path in paths:
        noise = random.integers(256, size=(24, 32, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)
    crop = CentreCrop(size=224, resize=224)
    with costs.of("JPEG photos of 500 x 375 to 224 pixels", count):
        for number in range(count):
            with Image.open(paths[number % len(paths)]) as picture:
                crop(picture.convert("RGB"), random)


def store(costs: Costs, folder: Path, count: int, width: int) -> None:
    """Captions of 50 letters, and a vector for each."""
    lines = folder / "captions.txt"
    lines.write_text(
        "\n".join(f"a photo of {n} red balls above a small blue cube" for n in range(count))
    )
    with costs.of("captions listed, and a digest of them", count, keeps=True):
        collection = caption_file(lines)
        items = digest_of(collection)
    vectors = np.random.default_rng(0).standard_normal((count, width), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    plan = _plan(collection, items, width)
    shard = plan.shard(folder, 0)
    with costs.of("vectors and captions written into a shard", count, shard):
        write_shard(shard, plan, collection.items, vectors, [])
    with costs.of("vectors and captions of a shard read, and its digest checked", count):
        opened = open_shard(shard, plan)
        opened.check()
    engine = LocalEngine(folder / "segments", width)
    with costs.of("put into the local index, two bytes a number", count, engine.folder):
        for start in range(0, count, AT_ONCE):
            rows = np.arange(start, min(start + AT_ONCE, count))
            engine.put(opened.items(rows), opened.vectors[rows])
    with costs.of("claims of a shard taken and let go", CLAIMS):
        for number in range(CLAIMS):
            with claimed(folder / f"{number}"):
                pass


def _plan(collection: Collection, items: str, width: int) -> ShardPlan:
    return ShardPlan(
        model="random",
        digest="",
        width=width,
        collection=dict(collection.record),
        num_images=0,
        num_captions=len(collection.items),
        items=items,
        num_shards=1,
    )


if __name__ == "__main__":
    typer.run(main)
