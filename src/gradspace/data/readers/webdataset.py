"""Tar shards in the layout of WebDataset, opened as a whole or streamed.

Shards are given as a folder, a file, a glob, or a brace range such as `train-{000..012}.tar`. Names
that begin with train, dev, val or test tell their split; `dev` and `test` name further shards.
Otherwise pictures are divided by shares, as in `table.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import IO

from gradspace.data.dataset import Dataset, Problem, Split, make_split
from gradspace.data.image_files import StoredImages
from gradspace.data.readers.registry import reader
from gradspace.data.shards.patterns import is_pattern, name_of, shards_by_split
from gradspace.data.shards.reading import UnusableSample
from gradspace.data.shards.store import Shards, tar_shards
from gradspace.data.shards.stream import STREAMING, Streaming
from gradspace.data.shares import Fraction, how_drawn, shares
from gradspace.progress import Progress

Place = tuple[int, int]
"""A shard, and the number of a sample in it."""


def _recognises(path: Path) -> bool:
    if path.is_dir():
        return any(path.glob("*.tar")) and not any(path.glob("captions.*"))
    return path.suffix == ".tar" and (path.exists() or is_pattern(path))


@reader(
    "webdataset",
    recognises=_recognises,
    looks_for="tar shards: a folder, a glob, or a range such as train-{000..012}.tar",
    elsewhere=True,
)
def open_webdataset(
    path: Path,
    images: Path | None,
    *,
    progress: Progress | None,
    dev: str = "",
    test: str = "",
    dev_share: Fraction = 0.1,
    test_share: Fraction = 0.1,
    streaming: Streaming = STREAMING,
) -> Dataset:
    """WebDataset's tar shards: pictures, each with a .txt or .json of the same name."""
    if images is not None:
        raise ValueError(f"{path} has its own images: leave images out")
    found = shards_by_split(path, {"dev": dev, "test": test})
    streamed = None
    if streaming.stream:
        train = found.pop("train", []) or found.pop("", [])
        streamed = streaming.start(tar_shards(train).sources, path)
    splits, problems = _splits(found, dev_share, test_share, progress)
    return Dataset(name_of(path), splits, problems, streamed)


def _splits(
    found: Mapping[str, Sequence[Path]],
    dev_share: float,
    test_share: float,
    progress: Progress | None,
) -> tuple[dict[str, Split], tuple[Problem, ...]]:
    problems: list[Problem] = []
    splits: dict[str, Split] = {}
    done, total = 0, sum(map(len, found.values()))

    def read_one() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, total)

    for split in ("train", "dev", "test", ""):
        if split not in found:
            continue
        store, captions = _read(found[split], split, problems, read_one)
        if split:
            splits[split] = _make_split(split, list(captions), captions, store)
        else:
            drawn = how_drawn("images", dev_share, test_share)
            for part, names in shares(list(captions), dev_share, test_share).items():
                splits[part] = replace(_make_split(part, names, captions, store), drawn=drawn)
    return splits, tuple(problems)


def _make_split(
    split: str, names: Sequence[str], captions: Mapping[str, list[str]], store: SampleStore
) -> Split:
    described = [(name, captions[name]) for name in names]
    return make_split(split, described, StoredImages(store, names))


def _read(
    paths: Sequence[Path], split: str, problems: list[Problem], read_one: Callable[[], None]
) -> tuple[SampleStore, dict[str, list[str]]]:
    """Index the pictures, and collect the captions by name."""
    shards = tar_shards(paths)
    places: dict[str, Place] = {}
    captions: dict[str, list[str]] = {}
    for shard in range(len(shards)):
        index = shards.index(shard)
        problems += index.problems(split)
        for number in range(len(index)):
            name = index.named(number)
            try:
                texts = shards.captions(shard, number)
            except UnusableSample as error:
                problems.append(Problem("unreadable captions", split, name, str(error)))
                continue
            if name in places:
                problems.append(Problem("duplicate key", split, name, "in shards of equal names"))
                continue
            places[name], captions[name] = (shard, number), texts
        read_one()
    return SampleStore(paths[0].parent, shards, places), captions


@dataclass
class SampleStore:
    """Pictures of shards by name, read in place: an `ImageStore`."""

    path: Path
    shards: Shards
    places: Mapping[str, Place]

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def open(self, name: str) -> IO[bytes]:
        return BytesIO(self.shards.data(*self.places[name]))
