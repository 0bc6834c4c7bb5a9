"""A list of tar shards as one store of samples, each identified by its shard and number there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from gradspace.data.shards.index import LostShard, ShardIndex, shard_index
from gradspace.data.shards.reading import ShardFiles, decode_picture, read_captions, read_picture

MOST_KNOWN = 64
"""Number of indexes that a process keeps in memory; others are read from the cache again."""


class Shards:
    """Samples of shards whose sizes are known; everything else about a shard is read on request.

    Safe to use from threads and forked workers.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self.sizes = tuple(_size(path) for path in paths)
        self.files = ShardFiles()
        self.contents: dict[int, str] = {}
        """Hash of the content of every shard read so far."""
        self._known: dict[int, ShardIndex] = {}

    def __len__(self) -> int:
        return len(self.paths)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_known": {}}

    def index(self, shard: int) -> ShardIndex:
        """Return the index of a shard; a ValueError if the shard has changed."""
        known = self._known.get(shard)
        if known is None:
            known = shard_index(self.paths[shard])
            content = self.contents.setdefault(shard, known.content)
            if (known.num_bytes, known.content) != (self.sizes[shard], content):
                raise LostShard(f"the shard {known.path} has changed while it was in use")
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[shard] = known
        return known

    def name(self, shard: int, number: int) -> str:
        """Name a sample as users know it."""
        return self.index(shard).named(number)

    def captions(self, shard: int, number: int) -> list[str]:
        """Read at least one caption, or raise UnusableSample."""
        return read_captions(self.files, self.index(shard), number)

    def data(self, shard: int, number: int) -> bytes:
        """Read the encoded picture."""
        return read_picture(self.files, self.index(shard), number)

    def picture(self, shard: int, number: int) -> Image.Image:
        """Decode the picture as RGB, or raise UnusableSample."""
        return decode_picture(self.data(shard, number))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise LostShard(f"the shard {path} cannot be read: {error.strerror}") from None
