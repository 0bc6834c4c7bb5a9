"""Weights of an objective: the gradient of its values with respect to the scores."""

from __future__ import annotations

import torch
from torch import Tensor

from gradspace.checks import check_finite, check_scores
from gradspace.objectives import Objective, as_objective
from gradspace.scores.positives import Positives, as_positives


def score_weights(
    objective: Objective | str, scores: Tensor, positives: Tensor | Positives
) -> Tensor:
    """Compute w[query, candidate] = d value[query] / d score; negative weights pull, positive push.

    Takes an objective or its name. Works for losses as well as for objectives that exist only in
    gradient space, and also under `torch.no_grad` and `torch.inference_mode`.
    """
    objective = as_objective(objective)
    check_scores(scores)
    check_finite("scores", scores)
    with torch.inference_mode(False), torch.enable_grad():
        scores = _for_autograd(scores).detach().requires_grad_()
        positives = as_positives(positives).each(_for_autograd)
        (weights,) = torch.autograd.grad(objective(scores, positives).sum(), scores)
    return weights


def _for_autograd(values: Tensor) -> Tensor:
    """Copy tensors that were made under inference mode, which autograd may not save."""
    return values.clone() if values.is_inference() else values
