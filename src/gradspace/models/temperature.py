"""A temperature that the model learns, for objectives whose own is a constant.

Objectives are formulas with numbers in them, which is what streamed and fused executions need. So
a learned scale goes into the embeddings instead, where autograd sees it: what an objective makes of
their scores is then scale * cosine (+ bias), whatever its own number is.
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
    """Embeddings for which the objective sees the learned scale; as they are to any other."""
    if learned is not None and isinstance(objective, NTXent):
        return images * (learned.scale * objective.temperature), texts
    if learned is not None and isinstance(objective, SigLIP):
        images = images * (learned.scale / objective.scale)
        bias = learned.scale.new_tensor(objective.bias) if learned.bias is None else learned.bias
        return with_bias(images, texts, (bias - objective.bias) / objective.scale)
    return images, texts


def with_bias(images: Tensor, texts: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """One more dimension, in which every score gets the bias."""
    ones, biases = images.new_ones(len(images), 1), bias.expand(len(texts), 1).to(texts)
    return torch.cat([images, ones], 1), torch.cat([texts, biases], 1)


@torch.no_grad()
def current_objective(objective: Objective, learned: LearnedScale | None) -> Objective:
    """The objective with the numbers that were learned so far."""
    if learned is not None and isinstance(objective, NTXent):
        return replace(objective, temperature=1 / float(learned.scale))
    if learned is not None and isinstance(objective, SigLIP):
        bias = objective.bias if learned.bias is None else float(learned.bias)
        return replace(objective, scale=float(learned.scale), bias=bias)
    return objective
