"""Which texts belong to which images, as kernels over tiles and queries read it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gradspace.execution.batch_pairs import NO_PAIR


class Slots(NamedTuple):
    """Short ids, and the candidates that belong to each query."""

    image_ids: Tensor
    text_ids: Tensor
    texts_of_images: Tensor
    """[images, slots], -1 where a slot is not used."""
    images_of_texts: Tensor

    @property
    def by_position(self) -> bool:
        return self.image_ids is self.text_ids


def slots_by_position(count: int, device: torch.device) -> Slots:
    ids = torch.arange(count, dtype=torch.int32, device=device)
    return Slots(ids, ids, ids[:, None], ids[:, None])


def slots_of_ids(image_ids: Tensor, text_ids: Tensor, device: torch.device) -> Slots:
    """On the device; it is waited for once, for the number of slots, unless ids go by position."""
    if not image_ids.is_cuda and _are_aligned(image_ids, text_ids):
        return slots_by_position(len(image_ids), device)
    image_ids, text_ids = (ids.to(device, non_blocking=True) for ids in (image_ids, text_ids))
    texts, texts_of_images = _sorted(text_ids), _ranges(_sorted(text_ids), image_ids)
    images_of_texts = _ranges(_sorted(image_ids), text_ids)
    counts = [ranges.number.max() for ranges in (texts_of_images, images_of_texts)]
    of_image, of_text = torch.stack(counts).tolist()
    if not of_image:
        raise ValueError(NO_PAIR)
    return Slots(
        texts_of_images.start.where(texts_of_images.number > 0, -1).int(),
        torch.searchsorted(texts.ids, text_ids).int(),
        _index(texts_of_images, of_image),
        _index(images_of_texts, of_text),
    )


def _are_aligned(image_ids: Tensor, text_ids: Tensor) -> bool:
    """Are both sides' ids the same ones, rising: image i belongs to text i and to no other?"""
    return torch.equal(image_ids, text_ids) and bool((image_ids[1:] > image_ids[:-1]).all())


class _Sorted(NamedTuple):
    ids: Tensor
    order: Tensor


class _Ranges(NamedTuple):
    """Where the candidates of every query are in their sorted order."""

    candidates: _Sorted
    start: Tensor
    number: Tensor


def _sorted(ids: Tensor) -> _Sorted:
    return _Sorted(*ids.sort(stable=True))


def _ranges(candidates: _Sorted, queries: Tensor) -> _Ranges:
    start = torch.searchsorted(candidates.ids, queries)
    end = torch.searchsorted(candidates.ids, queries, right=True)
    return _Ranges(candidates, start, end - start)


def _index(ranges: _Ranges, num_slots: int) -> Tensor:
    slot = torch.arange(num_slots, device=ranges.start.device)
    at = (ranges.start[:, None] + slot).clamp(max=len(ranges.candidates.order) - 1)
    used = slot < ranges.number[:, None]
    return ranges.candidates.order[at].where(used, -1).int().contiguous()
