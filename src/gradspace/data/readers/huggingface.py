"""Hugging Face datasets: a folder written by `save_to_disk`, or anything `load_dataset` opens.

The latter are given as `hf:owner/name`, a dataset of the hub, or `hf:folder`. Pictures stay in
the Arrow files of the library, which are read in place. A stream reads the shards of the library's
`IterableDataset`: nothing of the training data is downloaded before it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradspace.commands import pip_install
from gradspace.data.dataset import Dataset
from gradspace.data.readers.registry import reader
from gradspace.data.rows import (
    CAPTION_COLUMNS,
    IMAGE_COLUMNS,
    check_asked,
    find_column,
    split_of_rows,
)
from gradspace.data.shards.iterable import (
    Columns,
    IterableShard,
    first_line,
    iterable_shards,
    stored_picture,
    table_on_disk,
)
from gradspace.data.shards.patterns import NAMED_SPLITS
from gradspace.data.shards.stream import STREAMING, Streaming
from gradspace.parameters import Flag
from gradspace.progress import Progress

PREFIX = "hf:"
SAVED = ("dataset_dict.json", "state.json")
"""Files that `save_to_disk` writes for several splits, and for one."""


def _recognises(path: Path) -> bool:
    return str(path).startswith(PREFIX) or any((path / name).is_file() for name in SAVED)


@reader(
    "huggingface",
    recognises=_recognises,
    looks_for="a Hugging Face dataset: a folder of save_to_disk, hf:owner/name, or hf:folder",
    elsewhere=True,
)
def open_huggingface(
    path: Path,
    images: Path | None,
    *,
    progress: Progress | None,
    image: str = "",
    caption: str = "",
    id_column: str = "",
    by_content: Flag = False,
    config: str = "",
    train: str = "",
    dev: str = "",
    test: str = "",
    streaming: Streaming = STREAMING,
) -> Dataset:
    """Hugging Face datasets with a column of pictures and a column of captions."""
    check_asked(path, images, id_column, by_content)
    found, data = _load(path, config, streaming.stream)
    chosen = _chosen(found, {"train": train, "dev": dev, "test": test}, path)
    roots = _roots(path)
    streamed = None
    if streaming.stream:
        shards: list[IterableShard] = []
        if table := chosen.pop("train", None):
            columns = _columns(table, image, caption, id_column)
            shards = iterable_shards(_undecoded(table, columns), columns, roots, data)
        streamed = streaming.start_copied(shards, path, data, by_content)
    splits = {}
    for split, table in chosen.items():
        columns = _columns(table, image, caption, id_column)
        pictures = _undecoded(table, columns)
        if not isinstance(table, _library().Dataset):
            table = pictures = table_on_disk(pictures, columns, roots, data)
        rows = ArrowRows(pictures.select_columns([columns.image]), columns.image, roots)
        texts, ids = table[columns.caption], table[id_column] if id_column else None
        splits[split] = split_of_rows(
            split, rows, texts, ids, by_content=by_content, progress=progress
        )
    name = str(path).removeprefix(PREFIX).rstrip("/").rpartition("/")[2]
    return Dataset(name, splits, stream=streamed)


def _library() -> Any:
    try:
        import datasets
    except ImportError:
        raise ValueError(
            f"this dataset needs the package datasets: {pip_install('gradspace[datasets]')}"
        ) from None
    return datasets


def _load(path: Path, config: str, stream: bool) -> tuple[Mapping[str, Any], str]:
    """Load the splits by their own names, and a text that says which data it is, in which state."""
    datasets = _library()
    name = str(path).removeprefix(PREFIX)
    try:
        if not str(path).startswith(PREFIX):
            found, state = datasets.load_from_disk(name), _state(Path(name))
        else:
            place = str(Path(name).expanduser()) if Path(name).expanduser().exists() else name
            if stream:
                builder = datasets.load_dataset_builder(place, config or None)
                found, state = builder.as_streaming_dataset(), builder.cache_dir
            else:
                found, state = datasets.load_dataset(place, config or None), ""
    except Exception as error:  # the library, the hub and the network raise anything
        raise ValueError(f"{path} cannot be opened by datasets: {first_line(error)}") from error
    tables = found if isinstance(found, dict) else {str(found.split or "train"): found}
    return tables, f"{path} {state}"


def _state(folder: Path) -> str:
    """Describe the files of a saved dataset, so that others under the same names are told apart."""
    files = sorted(file for file in folder.resolve().rglob("*") if file.is_file())
    return " ".join(f"{f} {f.stat().st_size} {f.stat().st_mtime_ns}" for f in files)


def _chosen(found: Mapping[str, Any], asked: Mapping[str, str], path: Path) -> dict[str, Any]:
    """Select the tables of our splits: those that options name, or those with usual names."""
    chosen = {}
    for split, name in asked.items():
        if name and name not in found:
            raise ValueError(f"{path} has no split {name!r}, only {', '.join(found)}")
        usual = (n for n in found if NAMED_SPLITS.get(n) == split and n not in asked.values())
        if name := name or next(usual, ""):
            chosen[split] = found[name]
    if not chosen:
        raise ValueError(
            f"{path} has the splits {', '.join(found)}: name them as data.train, data.dev and "
            "data.test"
        )
    return chosen


def _columns(table: Any, image: str, caption: str, id_column: str) -> Columns:
    known = table.column_names
    return Columns(
        find_column(image, known, IMAGE_COLUMNS, "image"),
        find_column(caption, known, CAPTION_COLUMNS, "caption"),
        find_column(id_column, known, (), "id_column") if id_column else "",
    )


def _undecoded(table: Any, columns: Columns) -> Any:
    """Return the columns of a table that are read, the pictures as they are stored."""
    datasets = _library()
    kept, feature = table.select_columns(columns.names), table.features[columns.image]
    if isinstance(feature, datasets.Image):
        return kept.cast_column(columns.image, datasets.Image(decode=False))
    inner = feature.get("bytes") if isinstance(feature, dict) else feature
    if getattr(inner, "dtype", "") not in ("binary", "large_binary"):
        raise ValueError(f"column {columns.image!r} has type {feature} instead of pictures")
    return kept


def _roots(path: Path) -> tuple[str, ...]:
    """List the folders and addresses that may hold pictures stored as separate files."""
    name = str(path).removeprefix(PREFIX)
    if Path(name).expanduser().exists():
        return (str(Path(name).expanduser().resolve()),)
    config = _library().config
    places = (config.HF_DATASETS_CACHE, config.HF_CACHE_HOME)
    # The hub's own addresses have the revision behind the name of the dataset.
    return (*(str(Path(place).resolve()) for place in places), f"hf://datasets/{name}")


@dataclass(frozen=True, eq=False)
class ArrowRows:
    """Pictures of a table of the library."""

    table: Any
    column: str
    roots: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.table)

    def data(self, row: int) -> bytes:
        return stored_picture(self.table[row][self.column], self.roots)
