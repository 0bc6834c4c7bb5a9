"""The highest scores so far, for many queries at once, while candidates arrive tile by tile.

A score and the index of its candidate are one whole number, a key: the order of keys is that of
scores, and among equal scores the lower index is the higher key. All keys are different, so that
the highest ones are the same whatever selects them, on any device and in any number of parts.
"""

from __future__ import annotations

import torch
from torch import Tensor

LOW = 2**32 - 1
"""The 32 bits of a key that hold the index."""


class RunningTop:
    """The highest `length` keys of each query; candidates must arrive in the order of their index.

    Only candidates that score higher than the lowest key of their query compete, and after a few
    tiles these are few: most of the work is one comparison per score.
    """

    def __init__(self, num_queries: int, length: int, device: torch.device, start: int = 0) -> None:
        self.start = start
        """The index of the first candidate that will come."""
        self.keys = torch.full((num_queries, length), EMPTY, device=device)
        self.lowest = torch.full((num_queries,), -torch.inf, device=device)
        """[queries]: the score that a candidate has to exceed."""

    def take(self, queries: slice, tile: Tensor, first: int) -> None:
        """Let the candidates `first`, `first + 1`, ... compete: tile[query, candidate].

        A candidate that is none has score -inf. It can be among the highest only as long as fewer
        than `length` true candidates have come.
        """
        if first == self.start:
            mask = tile >= _last_of_highest(tile, self.keys.shape[1])
        else:
            mask = tile > self.lowest[queries, None]
        query, candidate = mask.contiguous().nonzero(as_tuple=True)
        self._merge(queries, query, encode_keys(tile[query, candidate], candidate + first))

    def _merge(self, queries: slice, query: Tensor, keys: Tensor) -> None:
        """Keep the highest of the old keys and new ones, which are sorted by their query."""
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
    """The highest keys of several lists for the same queries, as long as one of them, in order."""
    return torch.cat(parts, 1).topk(parts[0].shape[1]).values


def encode_keys(scores: Tensor, indices: Tensor) -> Tensor:
    """int64: 32 bits in the order of float32 scores, then 32 bits of the index, backwards."""
    bits = (scores.float() + 0.0).view(torch.int32)  # -0.0 becomes 0.0: equal scores, equal bits
    return (_flip(bits).long() << 32) | (LOW - indices)


def decode_keys(keys: Tensor) -> tuple[Tensor, Tensor]:
    """float32 scores and int64 indices."""
    return _flip((keys >> 32).int()).view(torch.float32), LOW - (keys & LOW)


def _flip(bits: Tensor) -> Tensor:
    """The bits of a negative float are ordered backwards: turn them round, and back again."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


EMPTY = int(encode_keys(torch.tensor(-torch.inf), torch.tensor(LOW)))
"""Lower than the key of any candidate."""


def _last_of_highest(tile: Tensor, length: int) -> Tensor:
    """[queries, 1]: the lowest of the `length` highest scores of a tile."""
    highest = tile.topk(min(length, tile.shape[1]), sorted=False).values
    return highest.amin(1, keepdim=True)
