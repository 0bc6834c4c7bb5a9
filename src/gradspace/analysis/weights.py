"""The weights of an objective: the gradient of its values with respect to the scores."""

from __future__ import annotations

import torch
from torch import Tensor

from gradspace.objectives import Objective
from gradspace.positives import Positives


def score_weights(objective: Objective, scores: Tensor, positives: Tensor | Positives) -> Tensor:
    """w[query, candidate] = d value[query] / d score: negative weights pull, positive ones push.

    Works for losses and for objectives that exist only in gradient space alike.
    """
    scores = scores.detach().requires_grad_()
    with torch.enable_grad():
        (weights,) = torch.autograd.grad(objective(scores, positives).sum(), scores)
    return weights
