"""Running top-k for many queries at once, while candidates arrive tile by tile.

A score and the index of its candidate form one integer, a key. Keys are ordered by score; among
equal scores the lower index has the higher key. All keys are distinct, so the highest ones are the
same on any device and in any number of parts.
"""

from __future__ import annotations

import torch
from torch import Tensor

LOW = 2**32 - 1
"""Mask of the 32 bits of a key that hold the index."""


class RunningTop:
    """Highest `length` keys of each query; candidates must arrive in the order of their indices.

    Only candidates that score higher than the lowest key of their query compete. After a few tiles
    these are few, and most of the work is one comparison per score.
    """

    def __init__(self, num_queries: int, length: int, device: torch.device, start: int = 0) -> None:
        self.start = start
        """Index of the first candidate to arrive."""
        self.keys = torch.full((num_queries, length), EMPTY, device=device)
        self.lowest = torch.full((num_queries,), -torch.inf, device=device)
        """Score that a candidate has to exceed, [queries]."""

    def take(self, queries: slice, tile: Tensor, first: int) -> None:
        """Let the candidates `first`, `first + 1`, ... compete: tile[query, candidate].

        Excluded candidates have score -inf. They can be among the highest only as long as fewer
        than `length` others have arrived.
        """
        if first == self.start:
            mask = tile >= _last_of_highest(tile, self.keys.shape[1])
        else:
            mask = tile > self.lowest[queries, None]
        query, candidate = mask.contiguous().nonzero(as_tuple=True)
        self._merge(queries, query, encode_keys(tile[query, candidate], candidate + first))

    def _merge(self, queries: slice, query: Tensor, keys: Tensor) -> None:
        """Keep the highest of the old keys and the new ones, which are sorted by query."""
        old = self.keys[queries]
        num_queries, length = old.shape
        count = torch.bincount(query, minlength=num_queries)
        slot = torch.arange(len(query), device=query.device) - (count.cumsum(0) - count)[query]
        most = int(count.max())
        both = torch.nn.functional.pad(old, (0, most), value=EMPTY)
        both[query, length + slot] = keys
        highest = both.topk(length, sorted=False).values
        self.keys[queries] = highest
        self.lowest[queries] = decode_keys(highest.amin(1))[0]

    def restore(self, keys: Tensor) -> None:
        self.keys = keys.to(self.keys.device)
        self.lowest = decode_keys(self.keys.amin(1))[0]


def merge_keys(parts: list[Tensor]) -> Tensor:
    """Merge several equally long lists of keys for the same queries into one, sorted."""
    return torch.cat(parts, 1).topk(parts[0].shape[1]).values


def encode_keys(scores: Tensor, indices: Tensor) -> Tensor:
    """Encode int64 keys: 32 bits ordered as float32 scores, then 32 bits of LOW - index."""
    bits = (scores.float() + 0.0).view(torch.int32)  # -0.0 becomes 0.0: equal scores, equal bits
    return (_flip(bits).long() << 32) | (LOW - indices)


def decode_keys(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Decode keys to float32 scores and int64 indices."""
    return _flip((keys >> 32).int()).view(torch.float32), LOW - (keys & LOW)


def _flip(bits: Tensor) -> Tensor:
    """Reverse the order of negative floats' bits, which is backwards; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


EMPTY = int(encode_keys(torch.tensor(-torch.inf), torch.tensor(LOW)))
"""Key below that of any candidate."""


def _last_of_highest(tile: Tensor, length: int) -> Tensor:
    """Lowest of the `length` highest scores of each query in a tile, [queries, 1]."""
    highest = tile.topk(min(length, tile.shape[1]), sorted=False).values
    return highest.amin(1, keepdim=True)
