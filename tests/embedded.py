"""Random embeddings with ids, and the loss of one execution on them, for tests anywhere."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

import gradspace as gs


class Embedded(NamedTuple):
    images: Tensor
    texts: Tensor
    image_ids: Tensor
    text_ids: Tensor


def embedded(
    num_images: int = 23,
    num_texts: int = 57,
    width: int = 6,
    *,
    seed: int = 0,
    length: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> Embedded:
    """Images with no text, one and several; texts with no image, one and two equal ones."""
    generator = torch.Generator().manual_seed(seed)

    def random(count: int) -> Tensor:
        return torch.randn(count, width, generator=generator, dtype=torch.float64)

    image_ids = torch.arange(num_images)
    image_ids[1] = 0  # an image that is there twice
    text_ids = torch.randint(2, num_images + 3, (num_texts,), generator=generator)
    text_ids[:4] = torch.tensor([0, 0, 5, 5])
    images = random(num_images)
    texts = random(num_texts) + images[text_ids.clamp(max=num_images - 1)]
    return Embedded(
        (length * normalize(images)).to(dtype),
        (length * normalize(texts)).to(dtype),
        image_ids,
        text_ids,
    )


class Outcome(NamedTuple):
    value: Tensor
    by_images: Tensor
    by_texts: Tensor


def outcome(loss: gs.RetrievalLoss, batch: Embedded, scale: float = 1.0, **ids: Any) -> Outcome:
    """The value of a loss and its gradients, times a scale."""
    images = batch.images.clone().requires_grad_()
    texts = batch.texts.clone().requires_grad_()
    ids = ids or {"image_ids": batch.image_ids, "text_ids": batch.text_ids}
    value = loss(images, texts, **ids)
    (scale * value).backward()
    assert images.grad is not None
    assert texts.grad is not None
    return Outcome(value.detach(), images.grad, texts.grad)
