"""Sources of an index: a folder of photos, a file of captions, or a split of a dataset."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image

from gradspace.data.dataset import Split, digest
from gradspace.data.image_files import ImageFolder, StoredImages, image_endings
from gradspace.files import check_is_file, check_is_folder
from gradspace.indexes.contract import Item
from gradspace.indexes.where import Value
from gradspace.runs.data import open_recipe
from gradspace.runs.recipe_tables import DataRecipe
from gradspace.wording import counted, typed

MOST_LISTED = 200
"""Characters of a caption that serve as its key; a longer one gets its beginning and a digest."""

PARTS_OF_AN_INDEX = ("segments", "thumbnails")
"""Folders beside an index.json."""


@dataclass(frozen=True)
class Collection:
    """Images and captions; `items` lists the images of the split, then its captions."""

    record: Mapping[str, Any]
    """Record from which `open_collection` opens the collection again."""
    split: Split
    items: Sequence[Item]
    problems: Sequence[str] = ()
    """A sentence for each file that is left out."""
    notes: Sequence[str] = ()
    """Sentences on what may surprise users about it."""

    def image(self, key: str) -> int:
        """Return the place of an image in the split."""
        if key not in self._places:
            raise ValueError(f"there is no longer an image {key!r}")
        return self._places[key]

    def picture(self, key: str) -> Image.Image:
        if self.split.images is None:
            raise ValueError("there are no pictures in this collection")
        return self.split.images.load(self.image(key))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.split.image_names)}


def open_collection(record: Mapping[str, Any]) -> Collection:
    """Open the current state of the collection that an index was made from."""
    if "photos" in record:
        return photo_folder(Path(record["photos"]), record.get("metadata"))
    if "captions" in record:
        return caption_file(Path(record["captions"]))
    return dataset_split(DataRecipe.model_validate(record["data"]), record["split"])


def identity(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what identifies a collection, however its paths were typed; metadata may change."""
    if "data" in record:
        data = DataRecipe.model_validate(record["data"])
        return {**record, "data": _with_resolved_paths(data)}
    return {what: str(Path(p).resolve()) for what, p in record.items() if what != "metadata"}


# --- photos -------------------------------------------------------------------------------------


def photo_folder(folder: Path, metadata: Path | str | None = None) -> Collection:
    """Collect every image file in a folder, except in hidden folders and in indexes.

    `metadata` is a CSV file with a column `path`, and other columns by which to filter items.
    """
    check_is_folder(folder, "a folder of photos")
    known = _read_metadata(Path(metadata)) if metadata else {}
    files = dict(_image_files(folder))
    if not files:
        raise ValueError(f"there are no image files in {typed(folder)}, nor in the folders in it")
    if metadata and not known.keys() & files.keys():
        raise ValueError(
            f"no path in {typed(metadata)} belongs to a photo in {typed(folder)}; the first is "
            f"{next(iter(known))!r}: paths must be relative to that folder"
        )
    names = sorted(name for name in files if is_text(name))
    problems = [f"the name of {name!r} is not text" for name in sorted(set(files) - set(names))]
    items = [_photo(name, files[name], known.get(name, {})) for name in names]
    images = StoredImages(ImageFolder(folder), names)
    record = {"photos": str(folder.resolve())}
    if metadata:
        record["metadata"] = str(Path(metadata).resolve())
    split = _split(folder.name, images=names, stored=images)
    notes = _unmatched(Path(metadata), folder, known, files) if metadata else []
    return Collection(record, split, items, problems, notes)


def _unmatched(
    table: Path, folder: Path, known: Mapping[str, object], files: Mapping[str, object]
) -> list[str]:
    """Note the paths of a table that belong to no photo."""
    without = [path for path in known if path not in files]
    if not without:
        return []
    match = "matches" if len(without) == 1 else "match"
    return [
        f"{len(without)} of {counted(len(known), 'path')} in {typed(table)} {match} no photo in "
        f"{typed(folder)}; the first is {without[0]!r}"
    ]


def is_text(name: str) -> bool:
    """Whether a file name is valid Unicode, as the system allows any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _image_files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    for place, folders, files in os.walk(folder):
        of_an_index = PARTS_OF_AN_INDEX if "index.json" in files else ()
        folders[:] = [n for n in folders if not n.startswith(".") and n not in of_an_index]
        for name in files:
            path = Path(place, name)
            if (
                not name.startswith(".")
                and path.suffix.lower() in image_endings()
                and path.is_file()
            ):
                yield path.relative_to(folder).as_posix(), path.stat()


def _photo(name: str, state: os.stat_result, known: Mapping[str, Value]) -> Item:
    facts: dict[str, Value] = {"folder": name.rpartition("/")[0], **known}
    stamp = [str(state.st_size), str(state.st_mtime_ns), *(f"{k}={v}" for k, v in known.items())]
    return Item(name, "image", image=name, fingerprint=digest(stamp, []), metadata=facts)


def with_facts(item: Item, picture: Image.Image) -> Item:
    """Add what a picture says about itself: its size, and when it was taken."""
    facts: dict[str, Value] = {"width": picture.width, "height": picture.height}
    with suppress(Exception):  # cameras may write anything
        taken = picture.getexif().get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal]
        facts["taken"] = datetime.strptime(taken, "%Y:%m:%d %H:%M:%S").isoformat(sep=" ")
    return replace(item, metadata={**facts, **item.metadata})


def _read_metadata(path: Path) -> dict[str, dict[str, Value]]:
    check_is_file(path, "a CSV file")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as a CSV file: {error}") from error
    if not rows or "path" not in rows[0]:
        raise ValueError(f"{path} needs a header with the column `path`, and lines below it")
    return {
        row["path"]: {k: _value(v) for k, v in row.items() if k and k != "path" and v}
        for row in rows
    }


def _value(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


# --- captions and datasets ----------------------------------------------------------------------


def caption_file(path: Path) -> Collection:
    """Read a text file with one caption per line; equal captions count once."""
    check_is_file(path, "a text file with one caption per line")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a text file: {error}") from error
    captions = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if not captions:
        raise ValueError(f"{path} has no captions: write one per line")
    items = [Item(_caption_key(caption), "caption", text=caption) for caption in captions]
    return Collection({"captions": str(path.resolve())}, _split(path.name, captions), items)


def _caption_key(caption: str) -> str:
    if len(caption) <= MOST_LISTED:
        return caption
    return f"{caption[:MOST_LISTED]} {digest([], [caption])}"


def dataset_split(data: DataRecipe, name: str, run: Path | None = None) -> Collection:
    """Collect the images and captions of a split, as training reads them; `run` names the data."""
    split = open_recipe(data, run=run).split(name)
    if split.passages is not None:
        raise ValueError("passages are not indexed yet: give photos, captions or a dataset of both")
    captions: list[list[str]] = [[] for _ in split.image_names]
    of_captions = []
    for caption, image in zip(split.captions, split.image_of_caption.tolist(), strict=True):
        captions[image].append(caption)
        key, shown = f"{split.image_names[image]}#{len(captions[image])}", split.image_names[image]
        of_captions.append(Item(key, "caption", caption, shown, digest([], [caption])))
    images = [
        Item(name, "image", "\n".join(own), name, digest([name], own))
        for name, own in zip(split.image_names, captions, strict=True)
    ]
    record = {"data": _with_resolved_paths(data), "split": name}
    notes = [split.announcement] if split.drawn else []
    return Collection(record, split, [*images, *of_captions], notes=notes)


def _with_resolved_paths(data: DataRecipe) -> dict[str, Any]:
    """Resolve paths, as an index may be searched from any folder."""
    found = data.model_dump(mode="json", exclude_none=True)
    for name in ("source", "images", "features"):
        if name in found and Path(found[name]).expanduser().exists():
            found[name] = str(Path(found[name]).expanduser().resolve())
    return found


def _split(
    name: str,
    captions: Sequence[str] = (),
    images: Sequence[str] = (),
    stored: StoredImages | None = None,
) -> Split:
    return Split(name, images, captions, np.zeros(len(captions), np.int64), images=stored)
