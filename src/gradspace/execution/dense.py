"""Whole score matrix, with a backward whose cost follows the number of non-zero weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradspace.execution.pairs import weighted_sums
from gradspace.objectives import Objective
from gradspace.scores.tiles import as_computed

FEW = 1 << 16
"""Number of scores up to which two matrix products are as fast as finding the non-zero weights."""


def score_matrix(objective: Objective, images: Tensor, texts: Tensor) -> Tensor:
    """Compute `scores[image, text]`, in at least float32, to call an objective with.

    Mined objectives give weight only to the positives and the hardest negatives: backward then
    sums just those embeddings instead of computing two matrix products. This is not done on a GPU,
    where reading the number of weights would synchronise, nor in graphs, whose shapes are fixed.
    """
    images, texts = as_computed(images), as_computed(texts)
    large = images.device.type == "cpu" and len(images) * len(texts) > FEW
    if objective.mined and large and not _in_a_transform():
        apply: Any = _FewWeights.apply
        scores: Tensor = apply(images, texts)
        return scores
    return images @ texts.t()


def _in_a_transform() -> bool:
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


class _FewWeights(torch.autograd.Function):
    """Matrix product whose incoming gradient is mostly zeros."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, texts: Tensor) -> Tensor:
        ctx.save_for_backward(images, texts)
        return images @ texts.t()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        images, texts = ctx.saved_tensors
        image, text = gradient.nonzero(as_tuple=True)
        weights = gradient[image, text]
        by_image, by_text = ctx.needs_input_grad
        return (
            weighted_sums(weights, texts, text, image, len(images)) if by_image else None,
            weighted_sums(weights, images, image, text, len(texts)) if by_text else None,
        )
