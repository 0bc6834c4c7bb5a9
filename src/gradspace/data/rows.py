"""Pictures and captions in the rows of a table, as in Hugging Face datasets and Parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from gradspace.data.dataset import PickedImages, Split, make_split
from gradspace.data.image_files import decode
from gradspace.data.shards.reading import FORMATS, captions_in
from gradspace.data.shares import how_drawn, shares
from gradspace.progress import Progress

IMAGE_COLUMNS = ("image", "jpg", "jpeg", "png", "webp", "img")
CAPTION_COLUMNS = ("caption", "captions", "sentences", "text", "txt")


class PictureRows(Protocol):
    """Encoded pictures by row; safe to use from threads and forked workers."""

    def __len__(self) -> int: ...

    def data(self, row: int) -> bytes:
        """Return the encoded picture of a row; a ValueError if it has none."""


@dataclass(frozen=True)
class RowImages:
    """Pictures of rows, with the names by which users know them."""

    rows: PictureRows
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.rows)

    def load(self, index: int) -> Image.Image:
        try:
            return decode(BytesIO(self.rows.data(index)), formats=FORMATS)
        except Exception as error:  # a damaged file can make a decoder raise anything
            raise ValueError(f"image {self.names[index]!r} is broken: {error}") from error


def picture_columns(file: Path) -> list[str]:
    """List the columns of a Parquet file that can hold pictures; none if it is another file."""
    import pyarrow.parquet  # slow to import

    try:
        schema = pyarrow.parquet.read_schema(file)
    except (pyarrow.ArrowException, OSError):
        return []
    return [field.name for field in schema if _holds_bytes(field.type)]


def _holds_bytes(kind: Any) -> bool:
    from pyarrow import types

    if types.is_struct(kind) and "bytes" in kind.names:
        kind = kind.field("bytes").type
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def find_column(asked: str, known: Sequence[str], usual: Sequence[str], what: str) -> str:
    """Find the column that was asked for, or the first usual one."""
    if asked:
        if asked not in known:
            raise ValueError(f"data.{what} is {asked!r}; use one of the columns {', '.join(known)}")
        return asked
    found = next((name for name in usual if name in known), None)
    if found is None:
        raise ValueError(
            f"none of the columns {', '.join(known)} has a usual name for {what}: name it with "
            f"data.{what}"
        )
    return found


def check_asked(path: Path, images: Path | None, id_column: str, by_content: bool) -> None:
    """Refuse options that contradict each other, or the data."""
    if images is not None:
        raise ValueError(f"{path} has its own images: leave images out")
    if id_column and by_content:
        raise ValueError(
            "data.id_column and data.by_content both say which rows are one image: give one"
        )


def split_of_rows(
    split: str,
    rows: PictureRows,
    captions: Iterable[Any],
    ids: Sequence[Any] | None = None,
    *,
    by_content: bool = False,
    progress: Progress | None = None,
) -> Split:
    """Make a split from the captions of every row: a text, or a list of texts or of sentences.

    Rows of equal ids, or with `by_content` of equal pictures, become one image with all their
    captions and the picture of the first row.
    """
    if by_content:
        keys = _contents(rows, progress)
    else:
        keys = list(range(len(rows))) if ids is None else list(ids)
    firsts: dict[Any, int] = {}
    described: dict[Any, list[str]] = {}
    for row, (key, value) in enumerate(zip(keys, captions, strict=True)):
        firsts.setdefault(key, row)
        described.setdefault(key, []).extend(captions_in(value))
    numbered = [f"{split}-{row:08d}" for row in range(len(rows))]
    names = numbered if ids is None else [str(key) for key in keys]
    picked = np.array([*firsts.values()], np.int64)
    made = make_split(split, [(names[firsts[key]], texts) for key, texts in described.items()])
    return replace(made, images=PickedImages(RowImages(rows, names), picked))


def _contents(rows: PictureRows, progress: Progress | None) -> list[Any]:
    """Identify the content of each picture; a row without one matches no other."""
    found: list[Any] = []
    for row in range(len(rows)):
        try:
            found.append(blake2b(rows.data(row), digest_size=16).hexdigest())
        except ValueError:
            found.append(row)
        if progress:
            progress(row + 1, len(rows))
    return found


def divide(split: Split, dev_share: float, test_share: float) -> dict[str, Split]:
    """Divide a split into train, dev and test, chosen by the names of its images."""
    captions: list[list[str]] = [[] for _ in split.image_names]
    for image, caption in zip(split.image_of_caption.tolist(), split.captions, strict=True):
        captions[image].append(caption)
    place = {name: index for index, name in enumerate(split.image_names)}
    parts = {}
    for part, names in shares(split.image_names, dev_share, test_share).items():
        chosen = [place[name] for name in names]
        assert split.images is not None
        images = PickedImages(split.images, np.array(chosen, np.int64))
        made = make_split(part, [(split.image_names[i], captions[i]) for i in chosen], images)
        parts[part] = replace(made, drawn=how_drawn("images", dev_share, test_share))
    return parts
