"""Learned temperature of a model, for objectives whose own is a constant.

Objectives are formulas with constants, as streamed and fused executions require. A learned scale is
therefore applied to the embeddings, where autograd sees it, such that an objective effectively uses
scale * cosine (+ bias), regardless of its own constants.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradspace.models.contract import LearnedScale
from gradspace.objectives import Objective
from gradspace.objectives.nt_xent import NTXent
from gradspace.objectives.siglip import SigLIP


def with_learned_scale(
    objective: Objective, images: Tensor, texts: Tensor, learned: LearnedScale | None
) -> tuple[Tensor, Tensor]:
    """Scale embeddings so that the objective uses the learned scale, if it has a scale."""
    if learned is not None and isinstance(objective, NTXent):
        return images * (learned.scale * objective.temperature), texts
    if learned is not None and isinstance(objective, SigLIP):
        images = images * (learned.scale / objective.scale)
        bias = learned.scale.new_tensor(objective.bias) if learned.bias is None else learned.bias
        return with_bias(images, texts, (bias - objective.bias) / objective.scale)
    return images, texts


def with_bias(images: Tensor, texts: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Append a dimension that adds the bias to every score."""
    ones, biases = images.new_ones(len(images), 1), bias.expand(len(texts), 1).to(texts)
    return torch.cat([images, ones], 1), torch.cat([texts, biases], 1)


@torch.no_grad()
def current_objective(objective: Objective, learned: LearnedScale | None) -> Objective:
    """Return the objective with the scale and bias learned so far."""
    if learned is not None and isinstance(objective, NTXent):
        return replace(objective, temperature=1 / float(learned.scale))
    if learned is not None and isinstance(objective, SigLIP):
        bias = objective.bias if learned.bias is None else float(learned.bias)
        return replace(objective, scale=float(learned.scale), bias=bias)
    return objective
