"""A table of captions (TSV, CSV or Parquet) with columns `image` and `caption`, and images.

Splits come from the first of these that exists:

- files `train.txt`, `dev.txt` (or `val.txt`) and `test.txt` beside the table, one image name per
  line; images of the table that no file names are not used;
- a column `split` with these names;
- shares of the images, `dev_share` and `test_share`, chosen by a hash of the name, so that the
  choice is reproducible and hardly changes when images are added.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from gradspace.data.dataset import Dataset, Problem, make_split
from gradspace.data.image_files import ImageStore, StoredImages, find_store, open_store
from gradspace.data.readers.registry import reader
from gradspace.data.rows import picture_columns
from gradspace.data.shares import Fraction, Splits, how_drawn, shares
from gradspace.data.text_files import read_lines, read_text
from gradspace.wording import counted

SUFFIXES = (".tsv", ".csv", ".parquet")
SPLITS = {"train": "train", "dev": "dev", "val": "dev", "test": "test"}
"""Split names in files, and ours."""


@dataclass
class CaptionTable:
    """Rows of a file, grouped by image, in their order."""

    captions: dict[str, list[str]] = field(default_factory=dict)
    images_of_split: dict[str, dict[str, None]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def splits(self) -> Splits:
        return {split: list(images) for split, images in self.images_of_split.items()}

    def add(self, where: str, image: str, caption: str, split: str | None) -> None:
        if not image:
            self.problems.append(Problem("caption without image", "", where))
            return
        self.captions.setdefault(image, []).append(caption)
        if split is not None:
            if split not in SPLITS:
                raise ValueError(f"{where} has split {split!r}; expected {', '.join(SPLITS)}")
            self.images_of_split.setdefault(SPLITS[split], {})[image] = None


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if _is_table(path) else []
    tables = sorted(
        file
        for file in path.iterdir()
        if _is_table(file) and file.stem not in ("passages", "questions")
    )
    named = [file for file in tables if file.stem == "captions"]
    return named or [file for file in tables if "caption" in _columns(file)]


def _is_table(file: Path) -> bool:
    """Whether a file is a table of captions, not one with pictures and not one beside a shard.

    img2dataset writes one beside every tar, with the captions and where the pictures came from.
    """
    if file.suffix == ".parquet":
        return not (picture_columns(file) or file.with_suffix(".tar").exists())
    return file.suffix in SUFFIXES


def _columns(file: Path) -> Sequence[str]:
    """Read the column names; none if the file cannot be read: photos may lie beside any table."""
    with suppress(ValueError):
        return next(_rows(file), (0, []))[1]
    return []


@reader(
    "table",
    recognises=lambda path: bool(_files(path)),
    looks_for="captions.tsv, .csv or .parquet with columns image and caption",
)
def open_table(
    path: Path, images: Path | None, *, dev_share: Fraction = 0.1, test_share: Fraction = 0.1
) -> Dataset:
    """Columns image and caption; splits from train.txt, dev.txt and test.txt, or by shares."""
    file, *others = _files(path)
    if others:
        raise ValueError(f"{path} has {len(others) + 1} tables of captions; give only one of them")
    table = _read(file)
    store = open_store(images) if images else find_store(file.parent, list(table.captions))
    named = split_files(file.parent) or table.splits
    splits = named or shares(list(table.captions), dev_share, test_share)
    drawn = "" if named else how_drawn("images", dev_share, test_share)
    made = {}
    for split in dict.fromkeys(SPLITS.values()):
        if split in splits:
            described = [(name, table.captions.get(name, [])) for name in splits[split]]
            stored = StoredImages(store, splits[split]) if store else None
            made[split] = replace(make_split(split, described, stored), drawn=drawn)
    unused = _captions_without_image(table, splits, store)
    name = path.resolve().name if path.is_dir() else path.stem
    return Dataset(name, made, (*table.problems, *unused))


def _read(file: Path) -> CaptionTable:
    rows = _rows(file)
    _, header = next(rows, (0, []))
    if not {"image", "caption"} <= set(header):
        raise ValueError(
            f"{file} has the columns {', '.join(header) or 'none'}; expected image and caption"
        )
    table = CaptionTable()
    for line, fields in rows:
        where = f"line {line} of {file.name}"
        if len(fields) == len(header):
            row = dict(zip(header, fields, strict=True))
            table.add(where, row["image"].strip(), row["caption"], row.get("split"))
        else:
            detail = f"{counted(len(fields), 'field')} instead of {len(header)}"
            table.problems.append(Problem("malformed row", "", where, detail))
    return table


def _rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    return _parquet_rows(file) if file.suffix == ".parquet" else _text_rows(file)


def _text_rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line numbers and fields, the header first; a quote is an ordinary character in TSV."""
    tabs = file.suffix == ".tsv"
    rows = csv.reader(
        io.StringIO(read_text(file), newline=""),
        delimiter="\t" if tabs else ",",
        quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL,
        strict=True,
    )
    try:
        yield from ((rows.line_num, fields) for fields in rows if fields)
    except csv.Error as error:
        raise ValueError(f"line {rows.line_num} of {file} cannot be read: {error}") from None


def _parquet_rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    import pyarrow.parquet  # slow to import, and few tables are Parquet

    try:
        table = pyarrow.parquet.read_table(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{file} is not a complete Parquet file: {error}") from None
    names = [name for name in table.column_names if name in ("image", "caption", "split")]
    yield 0, names or table.column_names
    columns = [table.column(name).to_pylist() for name in names]
    for line, row in enumerate(zip(*columns, strict=True), start=1):
        yield line, ["" if value is None else str(value) for value in row]


def split_files(folder: Path) -> Splits:
    """Read the names in train.txt, dev.txt (or val.txt) and test.txt, if there are any."""
    found: dict[str, list[str]] = {}
    for name, split in SPLITS.items():
        file = folder / f"{name}.txt"
        if file.is_file():
            if split in found:
                raise ValueError(f"{folder} has dev.txt and val.txt; remove one of them")
            found[split] = [line.strip() for line in read_lines(file) if line.strip()]
            if not found[split]:
                raise ValueError(f"{file} names no image; fill or remove it")
    return found


def _captions_without_image(
    table: CaptionTable, splits: Splits, store: ImageStore | None
) -> Iterator[Problem]:
    """Report images with captions that are in no split and have no file either."""
    used = {name for names in splits.values() for name in names}
    for name in table.captions:
        if name not in used and (store is None or name not in store):
            yield Problem("caption without image", "", name, "in no split and no image file")
