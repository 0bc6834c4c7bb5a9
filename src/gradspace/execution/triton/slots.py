"""Positives of each query as the kernels over tiles and queries read them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from gradspace.execution.batch_pairs import NO_PAIR
from gradspace.execution.triton.launching import ceil

QUERIES, CANDIDATES = 32, 256
"""Numbers of ids that a program compares at a time."""


class Slots(NamedTuple):
    """Ids of both sides, and the candidates that belong to each query."""

    image_ids: Tensor
    text_ids: Tensor
    texts_of_images: Tensor
    """Texts that belong to each image, [images, slots]; -1 in unused slots."""
    images_of_texts: Tensor

    @property
    def by_position(self) -> bool:
        return self.image_ids is self.text_ids


@lru_cache(maxsize=16)
def slots_by_position(count: int, device: torch.device) -> Slots:
    ids = torch.arange(count, dtype=torch.int32, device=device)
    return Slots(ids, ids, ids[:, None], ids[:, None])


def slots_of_ids(image_ids: Tensor, text_ids: Tensor, device: torch.device) -> Slots:
    """Build the slots on the device; unless CPU ids are aligned, this synchronises once."""
    if not image_ids.is_cuda and _are_aligned(image_ids, text_ids):
        return slots_by_position(len(image_ids), device)
    image_ids, text_ids = (ids.to(device, non_blocking=True) for ids in (image_ids, text_ids))
    sides = ((image_ids, text_ids), (text_ids, image_ids))
    counts = torch.stack([_count(*side).max() for side in sides]).tolist()
    if not counts[0]:
        raise ValueError(NO_PAIR)
    index = [_fill(*side, count) for side, count in zip(sides, counts, strict=True)]
    return Slots(image_ids, text_ids, index[0], index[1])


def _are_aligned(image_ids: Tensor, text_ids: Tensor) -> bool:
    """Whether both sides have the same strictly ascending ids: image i matches text i alone."""
    return torch.equal(image_ids, text_ids) and bool((image_ids[1:] > image_ids[:-1]).all())


def _count(query_ids: Tensor, candidate_ids: Tensor) -> Tensor:
    from gradspace.execution.triton import query_kernels

    counts = torch.empty_like(query_ids, dtype=torch.int32)
    query_kernels.count_positives[(ceil(len(query_ids), QUERIES),)](
        *(query_ids, candidate_ids, counts, len(query_ids), len(candidate_ids)),
        QUERIES=QUERIES,
        CANDIDATES=CANDIDATES,
    )
    return counts


def _fill(query_ids: Tensor, candidate_ids: Tensor, num_slots: int) -> Tensor:
    from gradspace.execution.triton import query_kernels

    index = torch.empty(len(query_ids), num_slots, dtype=torch.int32, device=query_ids.device)
    query_kernels.fill_slots[(ceil(len(query_ids), QUERIES),)](
        *(query_ids, candidate_ids, index, len(query_ids), len(candidate_ids)),
        COUNT=num_slots,
        QUERIES=QUERIES,
        CANDIDATES=CANDIDATES,
    )
    return index
