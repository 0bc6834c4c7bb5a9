"""Shards in other formats, copied when they are needed: only a few copies exist at a time.

A Parquet file or a shard of a Hugging Face dataset can only be read from its beginning, and a
stream reads many side by side, in another order. So the pictures and captions of a shard are copied
into one file in the cache, where they are read in place like those of a tar. A copy that was
removed is made again, with the same content.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gradspace.data.cache import locked_in_cache, made_once
from gradspace.data.shards.index import CAPTIONS, NamedShard, ShardIndex, load_index, save_index
from gradspace.data.shards.reading import captions_in

JSON = CAPTIONS.index("json")
INDEX = "index.npz"
NAME = "{}.jpg"
"""Name of the picture of a row, whatever its format."""
TRIES = 10
"""Times that a copy is made if other processes remove it, to make room for theirs."""
NO_PICTURE = "there is no picture in its row"
StoredRow = tuple[bytes | str, Any, Any]
"""A picture, or the reason why there is none; its captions in any form that `captions_in` reads;
the id of its image, or None."""


class RowShard(NamedShard, Protocol):
    """A shard that is read row by row."""

    @property
    def has_ids(self) -> bool:
        """Whether a column tells the image of each row."""

    def rows(self) -> Iterator[StoredRow]:
        """Read all rows; a LostShard if that is not possible, or if the shard has changed."""


@dataclass(frozen=True)
class CopiedShard:
    """A shard by its copy: a source of `Shards`."""

    rows: RowShard
    folder: Path
    """Folder of the copies of this data."""
    most: int
    """Number of copies that may exist in the folder."""
    by_content: bool = False
    """Whether rows with equal pictures are one image."""

    @property
    def name(self) -> str:
        return self.rows.name

    @property
    def num_bytes(self) -> int:
        return self.rows.num_bytes

    @property
    def shares_images(self) -> bool:
        return self.by_content or self.rows.has_ids

    @property
    def identity(self) -> str:
        return f"{self.rows.identity}{' by content' if self.by_content else ''}"

    def index(self) -> ShardIndex:
        """Load the index of the copy, which is made if there is none."""
        with locked_in_cache(self._place):  # processes of a run on a machine want the same copies
            for _ in range(TRIES):
                with suppress(OSError, ValueError, KeyError, EOFError):
                    return self._load()
                for left in (self._place, *self.folder.glob(f".{self._place.name}.*")):
                    if left.is_dir():  # damaged, or begun by a process that was killed
                        shutil.rmtree(left, ignore_errors=True)
                made_once(self._place, self._copy)
                self._remove_oldest()
            return self._load()

    def is_gone(self) -> bool:
        """Whether the copy was removed to make room for others, and can be made again."""
        return not self._place.is_dir()

    @property
    def _place(self) -> Path:
        digest = blake2b(self.identity.encode(), digest_size=16).hexdigest()
        return self.folder / digest

    def _load(self) -> ShardIndex:
        data = self._place / self.name
        found = load_index(self._place / INDEX, data, data.stat().st_size)
        if found.num_bytes != found.places[:, [1, 3]].sum():
            raise ValueError("the copy is not complete")
        os.utime(self._place)
        return found

    def _copy(self, folder: Path) -> None:
        save_index(folder / INDEX, self._copied(folder / self.name))
        os.utime(folder)  # which is the latest, however long it took

    def _copied(self, path: Path) -> ShardIndex:
        """Write all pictures and captions into one file."""
        names, places, ids, faults = [], [], [], []
        with open(path, "wb") as file:
            for number, (picture, value, key) in enumerate(self.rows.rows()):
                name = NAME.format(number)
                captions = captions_in(value)
                if isinstance(picture, str):
                    faults.append(("caption without image", name, picture))
                    continue
                if not captions:
                    faults.append(("image without caption", name, ""))
                    continue
                text = json.dumps(captions).encode()
                start = file.tell()
                places.append((start, len(picture), start + len(picture), len(text), JSON))
                names.append(name)
                ids.append(self._image_id(number, picture, key))
                file.write(picture)
                file.write(text)
            num_bytes = file.tell()
        table = np.array(places, np.int64).reshape(len(places), 5)
        known = np.array(ids, np.int64) if self.shares_images else None
        return ShardIndex(path, num_bytes, tuple(names), table, tuple(faults), known)

    def _image_id(self, number: int, picture: bytes, key: Any) -> int:
        """Return the number by which batches know the image of a row, of 63 bits."""
        alone = f"{self.identity} {number}"
        identity = picture if self.by_content else str(alone if key is None else key).encode()
        return int.from_bytes(blake2b(identity, digest_size=8).digest()) >> 1

    def _remove_oldest(self) -> None:
        """Remove the copies that were not used for longest, but not this one.

        Another process may do so, too, and remove a copy that was made a moment ago.
        """
        used = []
        for place in set(self.folder.glob("[!.]*")) - {self._place}:
            with suppress(FileNotFoundError):
                used.append((place.stat().st_mtime_ns, place))
        for _, place in sorted(used)[: max(len(used) + 1 - self.most, 0)]:
            removed = place.with_name(f".removed-{os.getpid()}-{place.name}")
            with suppress(FileNotFoundError):
                place.rename(removed)
            shutil.rmtree(removed, ignore_errors=True)
            place.with_name(f".{place.name}.lock").unlink(missing_ok=True)
