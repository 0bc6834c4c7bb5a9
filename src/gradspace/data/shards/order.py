"""The order of a stream: a pure function of the seed and the shards, resumable from a bookmark.

Shards are read in passes, each in a different order. `shards_at_once` consecutive shards form a
group, which is cut into blocks of about `buffer` samples: each block has the next piece of every
shard of the group, shuffled. So shards are read side by side from beginning to end, and only the
places of samples are kept in memory. The number of processes and workers that read does not
matter: each is assigned its samples, and the order is that of a single one.

The webdataset library shuffles what passes through each worker: its order depends on the number of
workers and on everything read before, so no run could resume at the sample where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np

from gradspace.data.dataset import Indices
from gradspace.data.shards.index import ShardIndex
from gradspace.data.shards.store import Shards

SUBSTITUTES = 7
"""Number of samples of the same block that may replace one that cannot be used."""
INDEXING_THREADS = 4


class Bookmark(NamedTuple):
    """Start of a group of shards in the stream: all that is needed to resume from there."""

    passed: int = 0
    """Number of completed passes over all shards."""
    group: int = 0
    start: int = 0
    """Number of samples of the stream before the group."""


@dataclass(frozen=True)
class ShardGroup:
    """Shards that are read side by side."""

    mark: Bookmark
    shards: tuple[int, ...]
    counts: tuple[int, ...]
    faults: tuple[str, ...]
    """Descriptions of everything in these shards that is not a usable sample."""

    @property
    def size(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True)
class StreamOrder:
    """Endless sequence of the samples of all shards, in the order set by a seed."""

    shards: Shards
    seed: int
    buffer: int
    shards_at_once: int

    def groups(self, mark: Bookmark) -> Iterator[ShardGroup]:
        """Yield groups from a bookmark on; the shards of the next group are indexed meanwhile."""
        groups_in_pass = ceil(len(self.shards) / self.shards_at_once)
        found_in_pass = mark.group > 0
        with ThreadPoolExecutor(INDEXING_THREADS) as threads:
            try:
                coming = self._indexed(threads, mark)
                while True:
                    group = _group(mark, coming)
                    found_in_pass |= group.size > 0
                    passed, number = divmod(mark.group + 1, groups_in_pass)
                    mark = Bookmark(mark.passed + passed, number, mark.start + group.size)
                    if passed and not found_in_pass:
                        first = f": {group.faults[0]}" if group.faults else ""
                        raise ValueError(f"no shard has a picture with a caption{first}")
                    found_in_pass &= not passed
                    coming = self._indexed(threads, mark)
                    yield group
            finally:
                threads.shutdown(cancel_futures=True)

    def blocks(self, group: ShardGroup) -> Iterator[tuple[int, Indices]]:
        """Yield the start of each block in the stream, and samples [size, 1 + SUBSTITUTES, 2]."""
        start = group.mark.start
        for block, samples in enumerate(self._pieces(group)):
            rng = np.random.default_rng([self.seed, group.mark.passed, group.mark.group, block])
            chosen = rng.integers(len(samples), size=(len(samples), 1 + SUBSTITUTES))
            chosen[:, 0] = rng.permutation(len(samples))
            yield start, samples[chosen]
            start += len(samples)

    def _pieces(self, group: ShardGroup) -> Iterator[Indices]:
        """Yield shard and number of the samples of each block, in the order of the shards."""
        num_blocks = ceil(group.size / self.buffer)
        for block in range(num_blocks):
            parts = []
            for shard, count in zip(group.shards, group.counts, strict=True):
                numbers = np.arange(*_cut(count, block, num_blocks))
                parts.append(np.stack([np.full_like(numbers, shard), numbers], 1))
            yield np.concatenate(parts)

    def _indexed(
        self, threads: ThreadPoolExecutor, mark: Bookmark
    ) -> list[tuple[int, Future[ShardIndex]]]:
        order = np.random.default_rng([self.seed, mark.passed]).permutation(len(self.shards))
        first = mark.group * self.shards_at_once
        numbers = order[first : first + self.shards_at_once].tolist()
        return [(number, threads.submit(self.shards.index, number)) for number in numbers]


def _cut(count: int, block: int, num_blocks: int) -> tuple[int, int]:
    return count * block // num_blocks, count * (block + 1) // num_blocks


def _group(mark: Bookmark, coming: list[tuple[int, Future[ShardIndex]]]) -> ShardGroup:
    indexes = [(shard, future.result()) for shard, future in coming]
    faults = [str(problem) for _, index in indexes for problem in index.problems()]
    return ShardGroup(
        mark=mark,
        shards=tuple(shard for shard, _ in indexes),
        counts=tuple(len(index) for _, index in indexes),
        faults=tuple(faults),
    )
