"""Running top-k on a GPU: a kernel reads a tile and keeps the scores that may be among the highest.

After the keys of a query there is room for more. Scores above the lowest key are appended there in
any order. Only when the room fills up do all keys compete, which raises the lowest.
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
"""Room for pending keys: ROOM times the length of a list, plus SPARE."""
GROWTH = 1.5
"""Candidates taken at once, relative to those seen before: if they come in random order, about
GROWTH times the length of a list are appended."""
SETTLED_AT_ONCE = 65_536
"""Queries settled at a time, to keep temporary copies small."""
HEIGHT, WIDTH, WARPS = 8, 128, 4
"""Shape of a program of the kernel: rows in memory, scores read of each row, and warps."""


def running_top(num_queries: int, length: int, device: torch.device, start: int = 0) -> Top:
    """Create the fastest running top-k for a device."""
    kind = CollectingTop if can_collect(device) else RunningTop
    return kind(num_queries, length, device, start)


def can_collect(device: torch.device) -> bool:
    """Whether the kernel runs on this device."""
    return is_available(torch.empty(0, device=device)) and _compiles(device)


@cache
def _compiles(device: torch.device) -> bool:
    """Whether the kernel compiles for this device; warns once if not."""

    def try_it() -> bool:
        CollectingTop(1, 1, device).take(slice(0, 1), torch.zeros(1, 1, device=device), 0)
        return True

    return or_else(try_it, lambda: False)


class _Taken(NamedTuple):
    """A part of a tile whose keys were appended, as far as there was room."""

    queries: slice
    tile: Tensor
    first: int
    most: Callable[[], int]
    """Returns the largest number of pending keys that any query then had."""


class CollectingTop:
    """Kernel version of `RunningTop`; it never holds excluded candidates (score -inf).

    Whether there was room for a tile is checked only when the next one is taken, so that the device
    stays busy. Until then a tile must not change.
    """

    def __init__(self, num_queries: int, length: int, device: torch.device, start: int = 0) -> None:
        self.start = start
        self.length, self.room = length, ROOM * length + SPARE
        shape = (num_queries, length + self.room)
        self._held = torch.full(shape, EMPTY, device=device)
        """Highest keys, then pending ones, [queries, length + room]."""
        self._count = torch.zeros(num_queries, dtype=torch.int32, device=device)
        """Number of pending keys, [queries]."""
        self._lowest = torch.full((num_queries,), -torch.inf, device=device)
        self._taken: _Taken | None = None
        self._settled = True

    @property
    def keys(self) -> Tensor:
        """Highest keys in any order, [queries, length]."""
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
        """Let candidates compete; see `RunningTop.take`."""
        for part in self._parts(tile.shape[1], first - self.start):
            self._append(queries, tile[:, part], first + part.start)

    def _parts(self, width: int, seen: int) -> Iterator[slice]:
        """Split candidates: first as many as there is room for, then more and more at a time."""
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
        """Complete the last tile, and make room for another."""
        if self._taken is None:
            return
        taken, self._taken = self._taken, None
        most = taken.most()
        if most > self.room:
            self._take_again(taken)
        elif most > self.room // 3:
            self._settle(taken.queries, most)

    def _take_again(self, taken: _Taken) -> None:
        """Drop the keys of a tile that exceeded the room, and take it in smaller parts."""
        queries, tile, first, _ = taken
        pending = self._held[queries, self.length :]
        pending.masked_fill_(decode_keys(pending)[1] >= first, EMPTY)
        self._settle(queries, self.room)
        for part in blocks(tile.shape[1], max(self.room, ceil(tile.shape[1], 2))):
            self._append(queries, tile[:, part], first + part.start)
        self._finish()

    def _settle(self, queries: slice, most: int) -> None:
        """Keep the highest keys of queries that have at most `most` pending ones."""
        held = self._held[queries, : self.length + most]
        highest = held.topk(self.length, sorted=False).values
        held[:, : self.length] = highest
        held[:, self.length :] = EMPTY
        self._count[queries] = 0
        self._lowest[queries] = decode_keys(highest.amin(1))[0]


Top = RunningTop | CollectingTop


def _read_later(number: Tensor) -> Callable[[], int]:
    """Copy a number to the CPU; reading it waits only for the work queued before this call."""
    if not number.is_cuda:
        return lambda: int(number)
    copy = number.to("cpu", non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def read() -> int:
        copied.synchronize()
        return int(copy)

    return read
