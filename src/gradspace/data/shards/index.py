"""Index of a tar shard: samples of a picture and its captions, located by reading the headers.

Members with the same name up to the first dot of the file name are one sample: a picture (.jpg,
.jpeg, .png, .webp) and captions (.txt, one per line, or .json); other members are ignored. An
index is made once and kept in the cache; nothing is unpacked, and pictures are read in place.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gradspace.data.cache import place_of
from gradspace.data.dataset import Problem
from gradspace.data.image_files import leads_outside
from gradspace.files import write_atomically

PICTURES = ("jpg", "jpeg", "png", "webp")
CAPTIONS = ("txt", "json")
"""Extensions of captions; a sample's first one in this order is read."""
LAYOUT = 1
"""Version of the files in the cache."""


class NamedShard(Protocol):
    """A shard of any format."""

    @property
    def name(self) -> str:
        """Name of the shard as users know it."""

    @property
    def num_bytes(self) -> int:
        """Size of its file when the data was opened; 0 if that is not known."""

    @property
    def identity(self) -> str:
        """Text that no other shard has, and that changes when the shard does if this is known."""


class LostShard(ValueError):  # noqa: N818
    """A shard that cannot be read, or has changed."""


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """Samples of one shard, in the order of the tar."""

    path: Path
    num_bytes: int
    names: tuple[str, ...]
    """Names of the pictures in the tar, or numbers of the rows that were copied."""
    places: NDArray[np.int64]
    """[samples, 5]: offset and size of the picture, offset and size of the captions, and the index
    of their extension in CAPTIONS."""
    faults: tuple[tuple[str, str, str], ...]
    """Kind, item ("" for the shard itself) and detail of everything that is not a usable sample."""
    ids: NDArray[np.int64] | None = None
    """[samples]: equal where samples are one image; None if each is an image of its own."""

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def content(self) -> str:
        """Hash of the names and places of the samples."""
        names = "\0".join(self.names).encode()
        return blake2b(self.places.tobytes() + names, digest_size=8).hexdigest()

    def named(self, number: int) -> str:
        """Name a sample as users know it, such as `train-000.tar/0001.jpg`."""
        return f"{self.path.name}/{self.names[number]}"

    def problems(self, split: str = "") -> Iterator[Problem]:
        """Yield everything in the shard that is not a usable sample."""
        for kind, item, detail in self.faults:
            place = f"{self.path.name}/{item}" if item else self.path.name
            yield Problem(kind, split, place, detail)


def shard_index(path: Path) -> ShardIndex:
    """Load the index of a shard from the cache, or make it if the shard is new or has changed."""
    try:
        status = path.stat()
    except OSError as error:
        raise LostShard(f"the shard {path} cannot be read: {error.strerror}") from None
    facts = (LAYOUT, path.absolute(), status.st_size, status.st_mtime_ns)
    cached = place_of("shards", *facts).with_suffix(".npz")
    with suppress(OSError, ValueError, KeyError, EOFError):
        return load_index(cached, path, status.st_size)
    index = _make(path)
    with suppress(OSError):  # the cache is optional
        save_index(cached, index)
    return index


def load_index(file: Path, path: Path, num_bytes: int) -> ShardIndex:
    """Load the index of the shard at `path`; a damaged file raises one of several errors."""
    with np.load(file, allow_pickle=False) as arrays:
        names, faults = (
            json.loads(arrays["names"].tobytes()),
            json.loads(arrays["faults"].tobytes()),
        )
        places, ids = arrays["places"], arrays.get("ids")
    return ShardIndex(path, num_bytes, tuple(names), places, tuple(map(tuple, faults)), ids)


def save_index(file: Path, index: ShardIndex) -> None:
    """Save everything about a shard but where it is."""
    arrays: dict[str, Any] = {
        name: np.frombuffer(json.dumps(values).encode(), np.uint8)
        for name, values in (("names", index.names), ("faults", index.faults))
    }
    if index.ids is not None:
        arrays["ids"] = index.ids
    with write_atomically(file, "wb") as out:
        np.savez(out, places=index.places, **arrays)


def _make(path: Path) -> ShardIndex:
    faults: list[tuple[str, str, str]] = []
    samples: dict[str, dict[str, tuple[str, int, int]]] = {}
    try:
        with open(path, "rb") as file:
            num_bytes = os.fstat(file.fileno()).st_size
            for name, start, size in _members(file, faults):
                _place(name, (start, size), samples, faults)
    except OSError as error:
        raise LostShard(f"the shard {path} cannot be read: {error.strerror}") from None
    names, places = [], []
    for key, parts in samples.items():
        picture = next((parts[ending] for ending in PICTURES if ending in parts), None)
        captions = next((n for n, ending in enumerate(CAPTIONS) if ending in parts), None)
        if picture is None or captions is None:
            kind = "caption without image" if picture is None else "image without caption"
            faults.append((kind, key, ""))
            continue
        names.append(picture[0])
        places.append((*picture[1:], *parts[CAPTIONS[captions]][1:], captions))
    table = np.array(places, np.int64).reshape(len(places), 5)
    return ShardIndex(path, num_bytes, tuple(names), table, tuple(faults))


def _place(
    name: str,
    where: tuple[int, int],
    samples: dict[str, dict[str, tuple[str, int, int]]],
    faults: list[tuple[str, str, str]],
) -> None:
    """Add a member to its sample; of members with one name, the first is kept."""
    folder, _, file = name.rpartition("/")
    stem, _, ending = file.partition(".")
    ending = ending.lower()
    if not stem or ending not in (*PICTURES, *CAPTIONS):
        return
    if leads_outside(name) or not name.isprintable():
        faults.append(("name leads outside", ascii(name), "nothing is read under such a name"))
        return
    parts = samples.setdefault(f"{folder}/{stem}" if folder else stem, {})
    if ending in parts or (ending in PICTURES and any(p in parts for p in PICTURES)):
        faults.append(("duplicate key", name, "the first one is used"))
    else:
        parts[ending] = (name, *where)


def _members(file: IO[bytes], faults: list[tuple[str, str, str]]) -> Iterator[tuple[str, int, int]]:
    """Yield name, start and size of the files of a tar, up to where it is damaged or truncated."""
    num_bytes = os.fstat(file.fileno()).st_size
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                # tarfile would keep every header that it has read.
                archive.members = []  # type: ignore[attr-defined]
                whole = member.offset_data + member.size <= num_bytes
                if member.isreg() and not member.issparse() and whole:
                    yield member.name, member.offset_data, member.size
            end = archive.offset
    except tarfile.TarError as error:
        faults.append(("damaged shard", "", f"{error}; what comes before it is used"))
        return
    file.seek(end)
    if file.read(tarfile.BLOCKSIZE).strip(b"\0") or end >= num_bytes:
        what = "is damaged" if end < num_bytes else "ends"
        faults.append(("damaged shard", "", f"it {what} at byte {end:,} without a tar's end"))
