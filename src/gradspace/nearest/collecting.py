"""The highest scores so far on a GPU: one kernel reads a tile and keeps what may be among them.

Behind the keys of a query there is room for more. What exceeds the lowest key is appended there,
without an order, and only when the room fills up do all keys compete, and the lowest rises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from gradspace.execution.triton.fused import is_available, or_else
from gradspace.execution.triton.launching import ceil
from gradspace.nearest.running import EMPTY, RunningTop, decode_keys
from gradspace.scores.tiles import blocks

ROOM, SPARE = 3, 32
"""For so many times the length of a list, and a few more, there is room behind it."""
GROWTH = 1.5
"""Times as many candidates as there have been are taken at once: where they come in random order,
as many times the length of a list are appended, give or take a few."""
SETTLED_AT_ONCE = 65_536
"""Queries, so that what is copied on the way stays small."""
HEIGHT, WIDTH, WARPS = 8, 128, 4
"""Of a program of the kernel: the rows in memory that it reads, the scores of each, its size."""


def running_top(num_queries: int, length: int, device: torch.device, start: int = 0) -> Top:
    """The fastest one for a device."""
    kind = CollectingTop if can_collect(device) else RunningTop
    return kind(num_queries, length, device, start)


def can_collect(device: torch.device) -> bool:
    """Is there a kernel for this device?"""
    return is_available(torch.empty(0, device=device)) and _compiles(device)


@cache
def _compiles(device: torch.device) -> bool:
    """Does the kernel? One warning says that it does not."""

    def try_it() -> bool:
        CollectingTop(1, 1, device).take(slice(0, 1), torch.zeros(1, 1, device=device), 0)
        return True

    return or_else(try_it, lambda: False)


class _Taken(NamedTuple):
    """A part of a tile whose keys were appended, unless there was no room for all."""

    queries: slice
    tile: Tensor
    first: int
    most: Callable[[], int]
    """The largest number of keys that a query then had beside its highest."""


class CollectingTop:
    """The keys of `RunningTop`, without those of candidates that are none (score -inf).

    Whether there was room for a tile is looked at when the next one comes, while the device is
    already busy with that one: until then a tile must stay as it is.
    """

    def __init__(self, num_queries: int, length: int, device: torch.device, start: int = 0) -> None:
        self.start = start
        self.length, self.room = length, ROOM * length + SPARE
        shape = (num_queries, length + self.room)
        self._held = torch.full(shape, EMPTY, device=device)
        """[queries, length + room]: the highest keys, then pending ones."""
        self._count = torch.zeros(num_queries, dtype=torch.int32, device=device)
        """[queries]: the pending keys."""
        self._lowest = torch.full((num_queries,), -torch.inf, device=device)
        self._taken: _Taken | None = None
        self._settled = True

    @property
    def keys(self) -> Tensor:
        """[queries, length]: the highest, in any order."""
        self._finish()
        if not self._settled:
            for queries in blocks(len(self._held), SETTLED_AT_ONCE):
                self._settle(queries, self.room)
            self._settled = True
        return self._held[:, : self.length]

    def restore(self, keys: Tensor) -> None:
        self._held[:, : self.length] = keys.to(self._held.device)
        self._lowest = decode_keys(self.keys.amin(1))[0]

    def take(self, queries: slice, tile: Tensor, first: int) -> None:
        """As `RunningTop.take`."""
        for part in self._parts(tile.shape[1], first - self.start):
            self._append(queries, tile[:, part], first + part.start)

    def _parts(self, width: int, seen: int) -> Iterator[slice]:
        """The first candidates as many as there is room for, then more and more at a time."""
        start = 0
        while start < width:
            size = max(self.room, int(GROWTH * (seen + start)))
            yield slice(start, min(start + size, width))
            start += size

    def _append(self, queries: slice, tile: Tensor, first: int) -> None:
        self._finish()
        self._settled = False
        with torch.cuda.device_of(tile):  # type: ignore[no-untyped-call]
            self._launch(queries, tile, first)
            most = _read_later(self._count[queries].amax())
        self._taken = _Taken(queries, tile, first, most)

    def _launch(self, queries: slice, tile: Tensor, first: int) -> None:
        from gradspace.nearest import kernels

        by_query = tile.stride(1) == 1
        rows, columns = tile.shape if by_query else tile.shape[::-1]
        kernels.collect[(ceil(rows, HEIGHT) * ceil(columns, WIDTH),)](
            tile,
            *tile.stride(),
            *tile.shape,
            first,
            self._lowest[queries],
            self._count[queries],
            self._count.stride(0),
            self._held[queries, self.length :],
            self._held.stride(0),
            self.room,
            BY_QUERY=by_query,
            HEIGHT=HEIGHT,
            WIDTH=WIDTH,
            num_warps=WARPS,
        )

    def _finish(self) -> None:
        """Make sure that the last tile is in, and that there is room for another."""
        if self._taken is None:
            return
        taken, self._taken = self._taken, None
        most = taken.most()
        if most > self.room:
            self._take_again(taken)
        elif most > self.room // 3:
            self._settle(taken.queries, most)

    def _take_again(self, taken: _Taken) -> None:
        """Forget what there was no room for, and take it in parts: the room holds a small one."""
        queries, tile, first, _ = taken
        pending = self._held[queries, self.length :]
        pending.masked_fill_(decode_keys(pending)[1] >= first, EMPTY)
        self._settle(queries, self.room)
        for part in blocks(tile.shape[1], max(self.room, ceil(tile.shape[1], 2))):
            self._append(queries, tile[:, part], first + part.start)
        self._finish()

    def _settle(self, queries: slice, most: int) -> None:
        """Keep the highest keys of queries that have at most so many pending."""
        held = self._held[queries, : self.length + most]
        highest = held.topk(self.length, sorted=False).values
        held[:, : self.length] = highest
        held[:, self.length :] = EMPTY
        self._count[queries] = 0
        self._lowest[queries] = decode_keys(highest.amin(1))[0]


Top = RunningTop | CollectingTop


def _read_later(number: Tensor) -> Callable[[], int]:
    """Waits for what the device has been given so far, and for nothing that comes after it."""
    if not number.is_cuda:
        return lambda: int(number)
    copy = number.to("cpu", non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def read() -> int:
        copied.synchronize()
        return int(copy)

    return read
