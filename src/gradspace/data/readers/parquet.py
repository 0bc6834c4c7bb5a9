"""Parquet files with pictures in them: a struct of bytes and path, or a binary column.

A Parquet file has to be read in large pieces, so its pictures are copied once, file by file, into
the cache, where each can be read separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from gradspace.data.cache import made_once, place_of
from gradspace.data.dataset import Dataset, Indices, Split
from gradspace.data.readers.registry import reader
from gradspace.data.rows import (
    CAPTION_COLUMNS,
    IMAGE_COLUMNS,
    check_asked,
    divide,
    find_column,
    picture_columns,
    split_of_rows,
)
from gradspace.data.shards.copied import NO_PICTURE, StoredRow
from gradspace.data.shards.index import LostShard
from gradspace.data.shards.patterns import is_pattern, name_of, shards_by_split
from gradspace.data.shards.reading import ShardFiles
from gradspace.data.shards.store import changed, file_state
from gradspace.data.shards.stream import STREAMING, Streaming
from gradspace.data.shares import Fraction
from gradspace.parameters import Flag
from gradspace.progress import Progress

AT_ONCE = 64
"""Number of rows copied in one go."""
ORDER = ("train", "dev", "test")


def _recognises(path: Path) -> bool:
    if path.suffix == ".parquet":
        return is_pattern(path) if not path.exists() else bool(picture_columns(path))
    return path.is_dir() and any(picture_columns(file) for file in path.glob("*.parquet"))


@reader(
    "parquet",
    recognises=_recognises,
    looks_for="Parquet files with a column of pictures: a file, a folder or a glob",
    elsewhere=True,
)
def open_parquet(
    path: Path,
    images: Path | None,
    *,
    progress: Progress | None,
    image: str = "",
    caption: str = "",
    id_column: str = "",
    by_content: Flag = False,
    dev: str = "",
    test: str = "",
    dev_share: Fraction = 0.1,
    test_share: Fraction = 0.1,
    streaming: Streaming = STREAMING,
) -> Dataset:
    """Parquet files that contain pictures, with captions beside them."""
    check_asked(path, images, id_column, by_content)
    found = shards_by_split(path, {"dev": dev, "test": test}, ".parquet")
    streamed = None
    if streaming.stream:
        train = found.pop("train", []) or found.pop("", [])
        shards = parquet_shards(train, image, caption, id_column)
        streamed = streaming.start_copied(shards, path, str(path.absolute()), by_content)
    total, done = sum(map(len, found.values())), 0
    splits: dict[str, Split] = {}
    for split, files in found.items():
        parts, captions, ids = [], [], []
        for file in files:
            known = _columns(file)
            column = find_column(image, picture_columns(file), IMAGE_COLUMNS, "image")
            parts.append(_copied(file, column))
            texts = find_column(caption, known, CAPTION_COLUMNS, "caption")
            captions += [value for (value,) in _rows(file, [texts])]
            if id_column:
                found_ids = find_column(id_column, known, (), "id_column")
                ids += [value for (value,) in _rows(file, [found_ids])]
            done += 1
            if progress:
                progress(done, total)
        rows, keys = CopiedRows(tuple(parts)), ids if id_column else None
        made = split_of_rows(split or "image", rows, captions, keys, by_content=by_content)
        splits |= {split: made} if split else divide(made, dev_share, test_share)
    ordered = {split: splits[split] for split in ORDER if split in splits}
    return Dataset(name_of(path), ordered, stream=streamed)


def _columns(file: Path) -> list[str]:
    import pyarrow.parquet

    try:
        return list(pyarrow.parquet.read_schema(file).names)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{file} is not a complete Parquet file: {error}") from None


def _rows(file: Path, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Read some columns row by row; a ValueError if the file is damaged or gone."""
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(file) as opened:
            for batch in opened.iter_batches(AT_ONCE, columns=list(columns)):
                yield from zip(*(batch.column(c).to_pylist() for c in columns), strict=True)
    except (pyarrow.ArrowException, OSError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ValueError(f"{file} cannot be read: {reason}") from None


# --- a stream -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ParquetShard:
    """A file whose rows are streamed: a `RowShard`."""

    path: Path
    num_bytes: int
    modified: int
    image: str
    caption: str
    id_column: str

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def identity(self) -> str:
        asked = (self.image, self.caption, self.id_column)
        return " ".join(map(str, (self.path.absolute(), self.num_bytes, self.modified, *asked)))

    @property
    def has_ids(self) -> bool:
        return bool(self.id_column)

    def columns(self) -> list[str]:
        """Find the names of the columns of pictures, of captions and, if asked for, of ids."""
        known = _columns(self.path)
        image = find_column(self.image, picture_columns(self.path), IMAGE_COLUMNS, "image")
        caption = find_column(self.caption, known, CAPTION_COLUMNS, "caption")
        ids = [find_column(self.id_column, known, (), "id_column")] if self.id_column else []
        return [image, caption, *ids]

    def rows(self) -> Iterator[StoredRow]:
        if file_state(self.path) != (self.num_bytes, self.modified):
            raise changed(str(self.path))
        try:
            for value, captions, *ids in _rows(self.path, self.columns()):
                yield _picture(value) or NO_PICTURE, captions, *(ids or [None])
        except ValueError as error:
            raise LostShard(f"the shard {error}") from None


def parquet_shards(
    files: Sequence[Path], image: str, caption: str, id_column: str
) -> list[ParquetShard]:
    """Describe files that are read later; the columns of the first one are looked up at once."""
    shards = [ParquetShard(f, *file_state(f), image, caption, id_column) for f in files]
    if shards:
        shards[0].columns()
    return shards


# --- pictures that were copied ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Copy:
    """Pictures of one file, one after the other, and the end of each."""

    pictures: Path
    ends: Indices


@dataclass(frozen=True, eq=False)
class CopiedRows:
    """Pictures of all files, by row."""

    parts: tuple[Copy, ...]
    files: ShardFiles = field(default_factory=ShardFiles)

    @cached_property
    def _firsts(self) -> Indices:
        return np.cumsum([0, *(len(part.ends) for part in self.parts)])

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def data(self, row: int) -> bytes:
        part = int(np.searchsorted(self._firsts, row, side="right")) - 1
        copy, place = self.parts[part], row - int(self._firsts[part])
        start, end = int(copy.ends[place - 1]) if place else 0, int(copy.ends[place])
        if start == end:
            raise ValueError("there is no picture in its row")
        return self.files.read(copy.pictures, int(copy.ends[-1]), start, end - start)


def _picture(value: Any) -> bytes | None:
    found: bytes | None = value.get("bytes") if isinstance(value, dict) else value
    return found


def _copied(file: Path, column: str) -> Copy:
    place = place_of("parquet", file.absolute(), *file_state(file), column)
    folder = made_once(place, partial(_copy, file, column))
    return Copy(folder / "pictures", np.load(folder / "ends.npy", allow_pickle=False))


def _copy(file: Path, column: str, folder: Path) -> None:
    ends = []
    with open(folder / "pictures", "wb") as out:
        for (value,) in _rows(file, [column]):
            out.write(_picture(value) or b"")
            ends.append(out.tell())
    np.save(folder / "ends.npy", np.array(ends, np.int64))
