"""Karpathy's `dataset_{flickr8k,flickr30k,coco}.json` with a folder or zip of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from gradspace.data.dataset import Dataset, make_split
from gradspace.data.image_files import ImageStore, StoredImages, find_store, holds_any, open_store
from gradspace.data.json_files import read_json
from gradspace.data.readers.registry import reader

SPLITS = {"train": ("train", "restval"), "dev": ("val", "dev"), "test": ("test",)}
"""Our split names, and those in the files; `restval` is the part of COCO's validation images that
is added to training."""

HUGGING_FACE = ("dataset_dict.json", "dataset_info.json")
"""Files that its `save_to_disk` writes."""


@dataclass(frozen=True)
class Sentence:
    raw: str
    sentid: int | None = None
    """Number of the caption in COCO."""


@dataclass(frozen=True)
class KarpathyEntry:
    """One image of the file; COCO's have a `filepath`, the folder of the image."""

    filename: str
    split: Literal["train", "restval", "val", "dev", "test"]
    sentences: list[Sentence]
    filepath: str = ""


@dataclass(frozen=True)
class KarpathyFile:
    images: list[KarpathyEntry]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.glob("dataset*.json") if file.name not in HUGGING_FACE)


def _recognises(path: Path) -> bool:
    return any(file.suffix == ".json" for file in _files(path))


@reader("karpathy", recognises=_recognises, looks_for="Karpathy's dataset_*.json")
def open_karpathy(path: Path, images: Path | None) -> Dataset:
    """Karpathy's JSON; `restval` joins train, and `val` is called dev."""
    file, *others = _files(path)
    if others:
        raise ValueError(f"{path} has {len(others) + 1} files dataset*.json; give only one")
    entries = read_json(file, KarpathyFile, "a dataset in Karpathy's layout").images
    store, name_of = _locate(entries, file.parent, images)
    splits = {}
    for split, names in SPLITS.items():
        chosen = [entry for entry in entries if entry.split in names]
        described = [(name_of(e), [sentence.raw for sentence in e.sentences]) for e in chosen]
        if described:
            stored = StoredImages(store, [image for image, _ in described]) if store else None
            ids = [sentence.sentid for e in chosen for sentence in e.sentences]
            known = [number for number in ids if number is not None]
            splits[split] = replace(
                make_split(split, described, stored),
                caption_ids=known if len(known) == len(ids) else None,
            )
    return Dataset(file.stem.removeprefix("dataset_"), splits)


def _with_folder(entry: KarpathyEntry) -> str:
    return f"{entry.filepath}/{entry.filename}" if entry.filepath else entry.filename


def _without_folder(entry: KarpathyEntry) -> str:
    return entry.filename


def _locate(
    entries: Sequence[KarpathyEntry], folder: Path, given: Path | None
) -> tuple[ImageStore | None, Callable[[KarpathyEntry], str]]:
    """Find the images, and the names they have there: some people put all of COCO in one folder."""
    for name_of in (_with_folder, _without_folder):
        names = [name_of(entry) for entry in entries]
        store = open_store(given) if given else find_store(folder, names)
        if store and holds_any(store, names):
            return store, name_of
    return store, _with_folder
