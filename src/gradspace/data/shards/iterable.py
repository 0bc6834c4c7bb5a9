"""Shards of a Hugging Face `IterableDataset`, of which nothing is read before it is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gradspace.data.cache import locked_in_cache, made_once, place_of
from gradspace.data.shards.copied import NO_PICTURE, StoredRow
from gradspace.data.shards.index import LostShard

AT_ONCE = 64
"""Number of rows read in one go."""
ARCHIVES = ("zip://", "tar://")
ROWS_PER_SHARD = 1000
"""Number of rows of a table on disk that become one shard."""


class Columns(NamedTuple):
    """Names of the columns that are read; without ids, each row is an image."""

    image: str
    caption: str
    ids: str = ""

    @property
    def names(self) -> list[str]:
        return [name for name in self if name]


@dataclass(frozen=True)
class IterableShard:
    """One shard of a dataset of the library: a `RowShard`."""

    table: Any
    """An IterableDataset whose pictures are not decoded."""
    number: int
    columns: Columns
    roots: tuple[str, ...]
    data: str
    """Text that says which dataset it is, and in which state."""
    num_bytes: int = 0

    @property
    def name(self) -> str:
        return f"{self.table.split or 'train'}-{self.number:05}-of-{self.table.num_shards:05}"

    @property
    def identity(self) -> str:
        return f"{self.data} {self.name} {' '.join(self.columns.names)}"

    @property
    def has_ids(self) -> bool:
        return bool(self.columns.ids)

    def rows(self) -> Iterator[StoredRow]:
        try:
            # Plain iteration would divide the shard once more among the workers of a DataLoader.
            for some in self.table.shard(self.table.num_shards, self.number).iter(AT_ONCE):
                values = [some[name] for name in self.columns.names]
                for value, captions, *ids in zip(*values, strict=True):
                    yield _picture(value, self.roots), captions, *(ids or [None])
        except Exception as error:  # the library, the hub and the network raise anything
            what = f"the shard {self.name} cannot be read"
            raise LostShard(f"{what}: {first_line(error)}") from error


def iterable_shards(
    table: Any, columns: Columns, roots: tuple[str, ...], data: str
) -> list[IterableShard]:
    """Divide a table of the library into shards, unless it is divided already."""
    if not hasattr(table, "num_shards"):
        num_shards = -(-len(table) // ROWS_PER_SHARD)
        table = table.to_iterable_dataset(num_shards=num_shards)
    return [IterableShard(table, n, columns, roots, data) for n in range(table.num_shards)]


def first_line(error: Exception) -> str:
    """Return what an error says first, as libraries go on about it for many lines."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _picture(value: Any, roots: Sequence[str]) -> bytes | str:
    try:
        return stored_picture(value, roots)
    except (ValueError, FileNotFoundError) as error:
        return getattr(error, "strerror", None) or str(error)


def stored_picture(value: Any, roots: Sequence[str]) -> bytes:
    """Return the encoded picture of a row, from its bytes or from its file.

    A ValueError if it has none, or if the file is in none of the folders and datasets `roots`, as
    anybody may have written its path.
    """
    data = value.get("bytes") if isinstance(value, dict) else value
    if data is not None:
        return bytes(data)
    path = value.get("path") if isinstance(value, dict) else None
    if not path:
        raise ValueError(NO_PICTURE)
    *inside, place = path.split("::")  # zip://inside::archive
    local = "://" not in place
    place = str(Path(place).resolve()) if local else place
    allowed = any(place.startswith((f"{root}/", *_revisions(root))) for root in roots)
    if not allowed or not all(part.startswith(ARCHIVES) for part in inside):
        raise ValueError(f"its file leads out of {roots[0]}")
    if local and not inside:
        return Path(path).read_bytes()
    import fsspec  # type: ignore[import-untyped]

    with fsspec.open(path, "rb") as file:
        found: bytes = file.read()
    return found


def _revisions(root: str) -> list[str]:
    """Return how addresses of a dataset on the hub begin that name its revision."""
    return [f"{root}@"] if "://" in root else []


def table_on_disk(table: Any, columns: Columns, roots: Sequence[str], data: str) -> Any:
    """Copy a streamed dev or test split, which is read again and again, into the cache once."""
    import datasets
    import pyarrow as pa

    def make(folder: Path) -> None:
        writer = None
        with pa.OSFile(str(folder / "rows.arrow"), "wb") as file:
            for some in table.with_format("arrow").iter(AT_ONCE):
                at = some.column_names.index(columns.image)
                found = [_picture(value, roots) for value in some[columns.image].to_pylist()]
                pictures = [None if isinstance(picture, str) else picture for picture in found]
                rows = some.set_column(at, columns.image, pa.array(pictures, pa.large_binary()))
                rows = rows.replace_schema_metadata()
                writer = writer or pa.ipc.new_stream(file, rows.schema)
                writer.write_table(rows)
            if writer is None:
                raise ValueError(f"the split {table.split} has no rows")
            writer.close()

    place = place_of("tables", data, *columns.names) / str(table.split)
    with locked_in_cache(place):
        made_once(place, make)
    return datasets.Dataset.from_file(str(place / "rows.arrow"))
