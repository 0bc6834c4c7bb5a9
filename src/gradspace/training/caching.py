"""The gradient of a large batch in the memory of a small one (gradient caching, Gao et al. 2021).

An objective needs all embeddings of a batch at once, but not the graphs behind them:

1. embed the batch part by part, without graphs;
2. compute the objective of all embeddings, and its gradient with respect to them;
3. embed every part again, with its graph, and backpropagate the gradient of its embeddings.

The gradient is that of the whole batch, up to rounding: dropout is the same in both passes. Only
BatchNorm in training mode differs, as it normalises over the rows of one part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradspace.data.batches import Batch
from gradspace.runs.checkpoint import random_states, restore_random_states


@dataclass(frozen=True)
class Embedded:
    """Embeddings of a batch, or of a part of one."""

    images: Tensor
    texts: Tensor
    extra: Tensor | None
    """Loss added by the model, as a share of the whole batch: it is summed over all parts."""


@dataclass(frozen=True)
class BatchOutcome:
    """Values of a batch after its backward pass, without graphs."""

    images: Tensor
    texts: Tensor
    loss: Tensor
    extra: Tensor | None


Embed = Callable[[Batch], Embedded]
Loss = Callable[[Tensor, Tensor], Tensor]
"""Function of the embeddings of all images and all texts."""
Scale = Callable[[Tensor], Tensor]
"""Scaling before backpropagation, for half precision and for batches that share a step."""


def backward(batch: Batch, embed: Embed, loss: Loss, scale: Scale) -> BatchOutcome:
    """Compute the gradient of a batch whose graph fits into memory."""
    found = embed(batch)
    value = loss(found.images, found.texts)
    torch.autograd.backward(scale(value if found.extra is None else value + found.extra))
    extra = None if found.extra is None else found.extra.detach()
    return BatchOutcome(found.images.detach(), found.texts.detach(), value.detach(), extra)


def cached_backward(
    parts: Sequence[Batch],
    embed: Embed,
    loss: Loss,
    scale: Scale,
    model: nn.Module,
    device: torch.device,
) -> BatchOutcome:
    """Compute the gradient of a batch in parts, with one graph at a time in memory."""
    states, embedded = _embed_without_graphs(parts, embed, model, device)
    images = torch.cat([part.images for part in embedded]).requires_grad_()
    texts = torch.cat([part.texts for part in embedded]).requires_grad_()
    value = loss(images, texts)
    torch.autograd.backward(scale(value))
    assert images.grad is not None
    assert texts.grad is not None
    image_gradients = torch.split(images.grad, [len(part.images) for part in embedded])
    text_gradients = torch.split(texts.grad, [len(part.texts) for part in embedded])
    extras = []
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        for part, state, gradients in zip(
            parts, states, zip(image_gradients, text_gradients, strict=True), strict=True
        ):
            restore_random_states(state, device)
            extras.append(_backward_again(embed(part), gradients, scale))
    extra = None if extras[0] is None else torch.stack([e for e in extras if e is not None]).sum()
    return BatchOutcome(images.detach(), texts.detach(), value.detach(), extra)


def _backward_again(
    found: Embedded, gradients: tuple[Tensor, Tensor], scale: Scale
) -> Tensor | None:
    """Backpropagate the cached gradients of a part, and the loss that the model adds."""
    if found.extra is None:
        torch.autograd.backward([found.images, found.texts], gradients)
        return None
    extra = scale(found.extra)
    torch.autograd.backward([found.images, found.texts, extra], [*gradients, None])
    return found.extra.detach()


@torch.no_grad()
def _embed_without_graphs(
    parts: Sequence[Batch], embed: Embed, model: nn.Module, device: torch.device
) -> tuple[list[dict[str, Tensor]], list[Embedded]]:
    """Compute the embeddings of every part, and the random states they were computed from."""
    states, embedded = [], []
    with _same_buffers_afterwards(model):
        for part in parts:
            states.append(random_states(device))
            embedded.append(embed(part))
    return states, embedded


@contextmanager
def _same_buffers_afterwards(model: nn.Module) -> Iterator[None]:
    """Restore buffers, as BatchNorm would count every part twice in its statistics."""
    buffers = list(model.buffers())
    before = [buffer.clone() for buffer in buffers]
    yield
    for buffer, value in zip(buffers, before, strict=True):
        buffer.copy_(value)
