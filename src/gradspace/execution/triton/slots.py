"""Positives of each query as the kernels over tiles and queries read them."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from gradspace.execution.batch_pairs import NO_PAIR
from gradspace.execution.triton.launching import ceil

QUERIES, CANDIDATES = 16, 512
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
    """Build the slots on the device; this synchronises once if the ids are on a GPU."""
    from gradspace.execution.triton import query_kernels

    if not image_ids.is_cuda and _are_aligned(image_ids, text_ids):
        return slots_by_position(len(image_ids), device)
    count = _most_on_gpu if image_ids.is_cuda else _most
    of_images, of_texts = count(image_ids, text_ids)
    if not of_images:
        raise ValueError(NO_PAIR)
    image_ids, text_ids = (ids.to(device, non_blocking=True) for ids in (image_ids, text_ids))
    n, m = len(image_ids), len(text_ids)
    index = torch.empty(n * of_images + m * of_texts, dtype=torch.int32, device=device)
    texts_of_images = index[: n * of_images].view(n, of_images)
    images_of_texts = index[n * of_images :].view(m, of_texts)
    query_kernels.fill_slots[(ceil(n, QUERIES) + ceil(m, QUERIES),)](
        *(image_ids, text_ids, texts_of_images, images_of_texts, n, m),
        COUNT=of_images,
        COUNT_T=of_texts,
        QUERIES=QUERIES,
        CANDIDATES=CANDIDATES,
    )
    return Slots(image_ids, text_ids, texts_of_images, images_of_texts)


def _are_aligned(image_ids: Tensor, text_ids: Tensor) -> bool:
    """Whether both sides have the same strictly ascending ids: image i matches text i alone."""
    return torch.equal(image_ids, text_ids) and bool((image_ids[1:] > image_ids[:-1]).all())


def _most(image_ids: Tensor, text_ids: Tensor) -> list[int]:
    """Find the largest number of texts of an image, and of images of a text."""
    number = torch.unique(torch.cat([image_ids, text_ids]), return_inverse=True)[1]
    of_images, of_texts = number.split([len(image_ids), len(text_ids)])
    size = int(number.max()) + 1
    images, texts = (side.bincount(minlength=size) for side in (of_images, of_texts))
    return [int(texts[of_images].max()), int(images[of_texts].max())]


def _most_on_gpu(image_ids: Tensor, text_ids: Tensor) -> list[int]:
    from gradspace.execution.triton import query_kernels

    n, m = len(image_ids), len(text_ids)
    most = torch.zeros(2, dtype=torch.int32, device=image_ids.device)
    query_kernels.count_positives[(ceil(n, QUERIES) + ceil(m, QUERIES),)](
        *(image_ids, text_ids, most, n, m), QUERIES=QUERIES, CANDIDATES=CANDIDATES
    )
    found: list[int] = most.tolist()
    return found
