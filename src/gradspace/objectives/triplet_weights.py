"""Triplet weights T(p, n): how much a triplet counts, from its positive and hardest negative score.

GOAL section 3.2. All arguments broadcast; the result is a constant of the step (no gradient).
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradspace.objectives.registry import triplet_weight
from gradspace.parameters import Positive, Real


@triplet_weight("constant", source="GOAL eq. 5")
def constant(p: Tensor, n: Tensor, *, margin: Real | None = 0.2) -> Tensor:
    """1 if margin + n - p > 0, else 0; with margin=None always 1, as in the authors' code."""
    if margin is None:
        return torch.ones_like(p + n)
    return (margin + n - p > 0).to(p.dtype)


@triplet_weight("nca", source="GOAL eq. 7")
def nca(p: Tensor, n: Tensor, *, scale: Positive = 10.0) -> Tensor:
    """1 / (1 + exp(scale (p - n))): constant along straight lines of equal p - n."""
    return torch.sigmoid(scale * (n - p))


@triplet_weight("circle", source="GOAL eq. 8")
def circle(p: Tensor, n: Tensor, *, scale: Positive = 10.0, offset: Real = 0.5) -> Tensor:
    """1 / (1 + exp(scale (p(2-p) - n^2 - offset))): constant along circles around p = 1, n = 0.

    Equation 8 has offset 0, the authors' code 0.5. The latter is the default because the published
    tables come from that code, and because it trains every model here
    (docs/explanation/concepts.md has the evidence). Circle loss with margin m has 1 - 2 m^2.
    """
    return torch.sigmoid(scale * (n * n + offset - p * (2 - p)))
