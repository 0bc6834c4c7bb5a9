"""Hugging Face datasets: a folder written by `save_to_disk`, or anything `load_dataset` opens.

The latter are given as `hf:owner/name`, a dataset of the hub, or `hf:folder`. Pictures stay in
the Arrow files of the library, which are read in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradspace.commands import pip_install
from gradspace.data.dataset import Dataset
from gradspace.data.readers.registry import reader
from gradspace.data.rows import CAPTION_COLUMNS, IMAGE_COLUMNS, find_column, split_of_rows
from gradspace.data.shards.patterns import NAMED_SPLITS
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
) -> Dataset:
    """Hugging Face datasets with a column of pictures and a column of captions."""
    if images is not None:
        raise ValueError(f"{path} has its own images: leave images out")
    if id_column and by_content:
        raise ValueError(
            "data.id_column and data.by_content both say which rows are one image: give one"
        )
    found = _load(path, config)
    chosen = _chosen(found, {"train": train, "dev": dev, "test": test}, path)
    roots = _roots(path)
    splits = {}
    for split, table in chosen.items():
        known = table.column_names
        pictures = find_column(image, known, IMAGE_COLUMNS, "image")
        texts = table[find_column(caption, known, CAPTION_COLUMNS, "caption")]
        ids = table[find_column(id_column, known, (), "id_column")] if id_column else None
        rows = ArrowRows(_undecoded(table, pictures), pictures, roots)
        splits[split] = split_of_rows(
            split, rows, texts, ids, by_content=by_content, progress=progress
        )
    return Dataset(str(path).removeprefix(PREFIX).rstrip("/").rpartition("/")[2], splits)


def _library() -> Any:
    try:
        import datasets
    except ImportError:
        raise ValueError(
            f"this dataset needs the package datasets: {pip_install('gradspace[datasets]')}"
        ) from None
    return datasets


def _load(path: Path, config: str) -> Mapping[str, Any]:
    """Load the splits by their own names."""
    datasets = _library()
    name = str(path).removeprefix(PREFIX)
    try:
        if str(path).startswith(PREFIX):
            place = str(Path(name).expanduser()) if Path(name).expanduser().exists() else name
            found = datasets.load_dataset(place, config or None)
        else:
            found = datasets.load_from_disk(name)
    except Exception as error:  # the library, the hub and the network raise anything
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ValueError(f"{path} cannot be opened by datasets: {first}") from error
    return found if isinstance(found, dict) else {str(found.split or "train"): found}


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


def _undecoded(table: Any, column: str) -> Any:
    """Return the pictures of a table as they are stored."""
    datasets = _library()
    kept, feature = table.select_columns([column]), table.features[column]
    if isinstance(feature, datasets.Image):
        return kept.cast_column(column, datasets.Image(decode=False))
    inner = feature.get("bytes") if isinstance(feature, dict) else feature
    if getattr(inner, "dtype", "") not in ("binary", "large_binary"):
        raise ValueError(f"column {column!r} has type {feature} instead of pictures")
    return kept


def _roots(path: Path) -> tuple[Path, ...]:
    """List the folders that may hold pictures stored as separate files."""
    local = Path(str(path).removeprefix(PREFIX)).expanduser()
    if local.exists():
        return (local.resolve(),)
    config = _library().config
    return tuple(
        Path(place).resolve() for place in (config.HF_DATASETS_CACHE, config.HF_CACHE_HOME)
    )


@dataclass(frozen=True, eq=False)
class ArrowRows:
    """Pictures of a table of the library."""

    table: Any
    column: str
    roots: tuple[Path, ...]

    def __len__(self) -> int:
        return len(self.table)

    def data(self, row: int) -> bytes:
        value = self.table[row][self.column]
        data = value.get("bytes") if isinstance(value, dict) else value
        if data is not None:
            return bytes(data)
        path = value.get("path") if isinstance(value, dict) else None
        if not path:
            raise ValueError("there is no picture in its row")
        file = Path(path).resolve()
        if not any(file.is_relative_to(root) for root in self.roots):
            raise ValueError(f"its file leads out of {self.roots[0]}")
        return file.read_bytes()
