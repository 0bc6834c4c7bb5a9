"""A list of shards as one store of samples, each identified by its shard and number there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from PIL import Image

from gradspace.data.shards.index import LostShard, NamedShard, ShardIndex, shard_index
from gradspace.data.shards.reading import (
    MOST_OPEN,
    ShardFiles,
    decode_picture,
    read_captions,
    read_picture,
)

T = TypeVar("T")

MOST_KNOWN = 64
"""Number of indexes that a process keeps in memory; others are read from the cache again."""
TRIES = 10
"""Times that a sample is read if other processes remove what its shard is read from."""


class ShardSource(NamedShard, Protocol):
    """A shard that can be indexed."""

    @property
    def shares_images(self) -> bool:
        """Whether several of its samples may be one image, each with captions of its own."""

    def index(self) -> ShardIndex:
        """Find its samples in a file that can be read in place; a LostShard if it has changed."""

    def is_gone(self) -> bool:
        """Whether that file was removed, and `index` makes it again."""


@dataclass(frozen=True)
class TarShard:
    """A tar, read where it is."""

    path: Path
    num_bytes: int

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def identity(self) -> str:
        return str(self.path.absolute())

    @property
    def shares_images(self) -> bool:
        return False

    def index(self) -> ShardIndex:
        found = shard_index(self.path)
        if found.num_bytes != self.num_bytes:
            raise changed(str(self.path))
        return found

    def is_gone(self) -> bool:
        return False


def tar_shards(paths: Sequence[Path]) -> Shards:
    """Make a store of the samples of tars, whose sizes are noted."""
    return Shards([TarShard(path, file_state(path)[0]) for path in paths])


def file_state(path: Path) -> tuple[int, int]:
    """Return the size of a file, and when it was modified."""
    try:
        status = path.stat()
        return status.st_size, status.st_mtime_ns
    except OSError as error:
        raise LostShard(f"the shard {path} cannot be read: {error.strerror}") from None


def changed(shard: str) -> LostShard:
    return LostShard(f"the shard {shard} has changed while it was in use")


class Shards:
    """Samples of shards; everything about a shard is read on request.

    Safe to use from threads and forked workers.
    """

    def __init__(self, sources: Sequence[ShardSource], most_open: int = MOST_OPEN) -> None:
        self.sources = tuple(sources)
        self.files = ShardFiles(most_open)
        self.contents: dict[int, str] = {}
        """Hash of the content of every shard read so far."""
        self._known: dict[int, ShardIndex] = {}

    def __len__(self) -> int:
        return len(self.sources)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_known": {}}

    def index(self, shard: int) -> ShardIndex:
        """Return the index of a shard; a ValueError if the shard has changed."""
        known = self._known.get(shard)
        if known is None:
            known = self.sources[shard].index()
            if known.content != self.contents.setdefault(shard, known.content):
                raise changed(self.sources[shard].name)
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[shard] = known
        return known

    def name(self, shard: int, number: int) -> str:
        """Name a sample as users know it."""
        return self.index(shard).named(number)

    def image_id(self, shard: int, number: int) -> int:
        """Return the number that samples of one image share, and no other sample has."""
        ids = self.index(shard).ids
        return shard << 32 | number if ids is None else int(ids[number])

    def captions(self, shard: int, number: int) -> list[str]:
        """Read at least one caption, or raise UnusableSample."""
        return self._read(read_captions, shard, number)

    def data(self, shard: int, number: int) -> bytes:
        """Read the encoded picture."""
        return self._read(read_picture, shard, number)

    def picture(self, shard: int, number: int) -> Image.Image:
        """Decode the picture as RGB, or raise UnusableSample."""
        return decode_picture(self.data(shard, number))

    def _read(self, read: Callable[[ShardFiles, ShardIndex, int], T], shard: int, number: int) -> T:
        for _ in range(TRIES - 1):
            try:
                return read(self.files, self.index(shard), number)
            except LostShard:
                if not self.sources[shard].is_gone():
                    raise
                self._known.pop(shard, None)
        return read(self.files, self.index(shard), number)
