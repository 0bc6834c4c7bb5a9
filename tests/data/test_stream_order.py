"""The order of a stream, whatever the shards: whole passes, and the same from any point on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gradspace.data.shards.index import ShardIndex
from gradspace.data.shards.order import Bookmark, StreamOrder
from gradspace.data.shards.store import Shards
from gradspace.data.shards.stream import ShardStream, StreamPlan, StreamPlans


@dataclass
class Counted:
    """Shards of which only the number of samples is known; each has a fault."""

    counts: list[int]

    def __len__(self) -> int:
        return len(self.counts)

    def index(self, shard: int) -> ShardIndex:
        names = tuple(map(str, range(self.counts[shard])))
        path = Path(f"{shard}.tar")
        return ShardIndex(path, 0, names, np.zeros((len(names), 5), np.int64), (("bad", "", ""),))


def plans(
    stream: ShardStream, size: int, first: int, number: int, rank: int = 0, world_size: int = 1
) -> list[StreamPlan]:
    order = StreamOrder(stream.shards, 1, stream.buffer, stream.shards_at_once)
    mark = stream.bookmark(size, 0, first)
    return list(StreamPlans(stream, order, size, first, number, mark, rank, world_size))


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=7).filter(any),
    buffer=st.integers(1, 20),
    at_once=st.integers(1, 9),
    size=st.integers(1, 12),
    start=st.integers(0, 20),
)
def test_any_shards(counts: list[int], buffer: int, at_once: int, size: int, start: int) -> None:
    def fresh() -> ShardStream:
        shards: Any = Counted(counts)
        return ShardStream(cast(Shards, shards), 1000, buffer, at_once, 1)

    whole_stream = fresh()
    whole = plans(whole_stream, size, 0, 21)
    samples = np.concatenate([plan.samples[:, 0] for plan in whole]).tolist()
    total = sum(counts)
    every = sorted([shard, number] for shard, n in enumerate(counts) for number in range(n))
    for begin in range(0, len(samples) - total + 1, total):
        assert sorted(samples[begin : begin + total]) == every
    assert [plan.start for plan in whole] == [size * number for number in range(21)]
    assert all(len(plan.samples) == size for plan in whole)
    for plan in whole:
        for place, *others in plan.samples.tolist():
            assert all(other in every for other in (place, *others))

    marked = fresh()
    marked.marks[:] = [whole_stream.bookmark(size, 0, start)]
    for resumed in (fresh(), marked):
        for a, b in zip(plans(resumed, size, start, 21 - start), whole[start:], strict=True):
            assert (a.start, a.faults) == (b.start, b.faults)
            assert np.array_equal(a.samples, b.samples)
    if size >= 2:
        parts = [plans(fresh(), size, 0, 21, rank, 2) for rank in (0, 1)]
        for one, *shares in zip(whole, *parts, strict=True):
            assert np.array_equal(np.concatenate([p.samples for p in shares]), one.samples)
            assert sum((p.faults for p in shares), ()) == one.faults
    assert marked.marks[0] <= whole_stream.marks[-1]
    assert isinstance(marked.marks[0], Bookmark)
