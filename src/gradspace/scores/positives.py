"""Positives, the candidates that belong to each query, from ids, masks or positions.

`Positives` is compact: it lists the candidates that belong to each query, in slots, instead of
holding a queries x candidates matrix. It is built from ids (equal ids belong together), from a
boolean matrix, or by position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from gradspace.checks import Ids, check_tensor, ids_vector


@dataclass(frozen=True, eq=False)
class Positives:
    """Positives of every query.

    `index[query, slot]` is a candidate, and `valid[query, slot]` tells whether it is one of the
    query's positives. Invalid slots repeat the query's first positive (candidate 0 for a query
    without one), so that `index` can always be used to gather and scatter.
    """

    index: Tensor
    valid: Tensor
    num_candidates: int
    left_out: Tensor | None = None
    """Mask, [queries, slots], of candidates that are neither positives nor negatives."""

    @property
    def num_queries(self) -> int:
        return self.index.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_queries, self.num_candidates

    @property
    def num_negatives(self) -> Tensor:
        """Number of negatives of each query, [queries, 1]."""
        count = self.num_candidates - self.valid.sum(1, keepdim=True)
        return count if self.left_out is None else count - self.left_out.sum(1, keepdim=True)

    @property
    def any_valid(self) -> Tensor:
        """Mask, [queries], of the queries that have a positive."""
        return self.valid.any(1)

    def pairs(self) -> tuple[Tensor, Tensor]:
        """List the (query, candidate) indices of all positive pairs, sorted by query."""
        query, slot = self.valid.nonzero(as_tuple=True)
        return query, self.index[query, slot]

    def transpose(self) -> Positives:
        """Swap queries and candidates: text->image from image->text."""
        query, candidate = self.pairs()
        order = candidate.argsort(stable=True)
        return _from_pairs(candidate[order], query[order], (self.num_candidates, self.num_queries))

    def part(self, start: int, stop: int) -> tuple[Positives, Tensor]:
        """Restrict to queries start .. stop - 1 and their positives; also return the latter."""
        query, candidate = self.pairs()
        inside = (query >= start) & (query < stop)
        kept, renumbered = torch.unique(candidate[inside], return_inverse=True)
        return _from_pairs(query[inside] - start, renumbered, (stop - start, len(kept))), kept

    def permute_candidates(self, order: Tensor) -> Positives:
        """Adapt to candidates reordered as `candidates[order]`."""
        new_place = torch.empty_like(order)
        new_place[order] = torch.arange(len(order), device=order.device)
        return Positives(new_place[self.index], self.valid, self.num_candidates)

    def to(self, device: torch.device) -> Positives:
        return self.each(lambda part: part.to(device, non_blocking=True))

    def each(self, change: Callable[[Tensor], Tensor]) -> Positives:
        """Apply a function to every tensor."""
        left_out = None if self.left_out is None else change(self.left_out)
        return Positives(change(self.index), change(self.valid), self.num_candidates, left_out)

    def with_more(self, own: Positives) -> Positives:
        """Append the candidates of `own`, whose positives are left out of their queries' rows."""
        behind = (own.index + self.num_candidates).where(own.valid, self.index[:, :1])
        return Positives(
            index=torch.cat([self.index, behind], 1),
            valid=torch.cat([self.valid, torch.zeros_like(own.valid)], 1),
            num_candidates=self.num_candidates + own.num_candidates,
            left_out=torch.cat([torch.zeros_like(self.valid), own.valid], 1),
        )


def match_positions(count: int, device: torch.device | None = None) -> Positives:
    """Pair query i with candidate i."""
    index = torch.arange(count, device=device)[:, None]
    return Positives(index, torch.ones_like(index, dtype=torch.bool), count)


def match_nothing(scores: Tensor) -> Positives:
    """Positives of scores[query, candidate] in which no query has any."""
    index = torch.zeros(len(scores), 0, dtype=torch.long, device=scores.device)
    return Positives(index, index.bool(), scores.shape[1])


def match_ids(query_ids: Ids, candidate_ids: Ids) -> Positives:
    """Pair queries and candidates of equal ids: any number of captions per image, in any order.

    Items with several ids, [n, k], match if they have one in common. The result is on the device of
    the ids. For a batch that was just loaded that is the CPU, where matching does not interrupt a
    GPU.

    Examples:
        >>> match_ids(["cat", "dog"], ["dog", "cat", "cat"]).pairs()
        (tensor([0, 0, 1]), tensor([1, 2, 0]))
    """
    on = [ids.device for ids in (query_ids, candidate_ids) if isinstance(ids, Tensor)]
    where = on[0] if len(on) == 2 else torch.device("cpu")
    query, candidate = stable_ids(query_ids, where), stable_ids(candidate_ids, where)
    if query.dim() == 2 or candidate.dim() == 2:
        return _match_several(query, candidate)
    order = candidate.argsort(stable=True)
    in_order = candidate[order]
    first = torch.searchsorted(in_order, query)
    count = torch.searchsorted(in_order, query, right=True) - first
    slot = torch.arange(max(_maximum(count), 1), device=query.device)
    valid = slot < count[:, None]
    at = first[:, None] + torch.where(valid, slot, 0)
    if not len(candidate):
        return Positives(torch.zeros_like(at), valid, 0)
    return Positives(order[at.clamp(max=len(candidate) - 1)], valid, len(candidate))


def _match_several(query: Tensor, candidate: Tensor) -> Positives:
    """Build positives from matrices of ids; a pair with two ids in common counts once."""
    of_query, of_candidate = (ids.shape[1] if ids.dim() == 2 else 1 for ids in (query, candidate))
    place, other = match_ids(query.flatten(), candidate.flatten()).pairs()
    width = max(len(candidate), 1)
    pairs = torch.unique(place // of_query * width + other // of_candidate)
    return _from_pairs(pairs // width, pairs % width, (len(query), len(candidate)))


def match_mask(mask: Tensor) -> Positives:
    """Convert `mask[query, candidate]`, true for positives."""
    query, candidate = mask.nonzero(as_tuple=True)
    return _from_pairs(query, candidate, (mask.shape[0], mask.shape[1]))


def as_positives(positives: Tensor | Positives) -> Positives:
    if isinstance(positives, Positives):
        return positives
    check_tensor("positives", positives)
    if positives.dtype != torch.bool:
        raise ValueError(
            f"positives must be a boolean matrix, got {positives.dtype}; compare ids or use `> 0`"
        )
    if positives.dim() != 2:
        raise ValueError(
            f"positives must be [queries, candidates], got shape {list(positives.shape)}"
        )
    return match_mask(positives)


def _from_pairs(query: Tensor, candidate: Tensor, shape: tuple[int, int]) -> Positives:
    """Build positives from pairs that are sorted by query."""
    num_queries, num_candidates = shape
    count = torch.bincount(query, minlength=num_queries)
    num_slots = max(_maximum(count), 1)
    slot = torch.arange(len(query), device=query.device) - (count.cumsum(0) - count)[query]
    index = torch.zeros(num_queries, num_slots, dtype=torch.long, device=query.device)
    index[query, slot] = candidate
    valid = torch.arange(num_slots, device=query.device) < count[:, None]
    return Positives(torch.where(valid, index, index[:, :1]), valid, num_candidates)


def _maximum(count: Tensor) -> int:
    return int(count.max()) if len(count) else 0


def stable_ids(ids: Ids, device: torch.device) -> Tensor:
    """Convert ids to int64, equally in every batch and process; names become 64-bit hashes."""
    vector = ids_vector(ids)
    if not isinstance(vector, Tensor):
        if vector.dtype.kind == "U":
            names, places = np.unique(vector, return_inverse=True)
            places = places.reshape(vector.shape)
            digests = b"".join(blake2b(n.encode(), digest_size=8).digest() for n in names)
            vector = np.frombuffer(digests, np.int64)[places]
        vector = torch.from_numpy(vector.astype(np.int64))
    waits = device.type == "cpu"  # for a copy from the GPU, whose result is read right here
    return vector.to(device, torch.long, non_blocking=not waits).contiguous()
