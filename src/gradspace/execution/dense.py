"""The whole score matrix, with a gradient that costs what the objective's weights cost."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradspace.execution.pairs import weighted_sums
from gradspace.objectives import Objective
from gradspace.scores.tiles import as_computed

FEW = 1 << 16
"""Scores up to which two products are as fast as looking for the weights."""


def score_matrix(objective: Objective, images: Tensor, texts: Tensor) -> Tensor:
    """`scores[image, text]` in at least float32, for an objective to be called with.

    Mined objectives give weight to the positives and the hardest negatives alone: backward then
    takes sums of as many embeddings in the place of two matrix products. Not on a GPU, where one
    would have to wait for the number of weights, nor in graphs, whose shapes are fixed.
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
    """A product of matrices whose gradient is mostly zeros."""

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
