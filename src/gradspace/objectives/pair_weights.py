"""Pair weights (P+, P-): how hard the positive is pulled and the negative pushed.

GOAL section 3.3. All arguments broadcast; the result is a constant of the step (no gradient).
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradspace.objectives.registry import pair_weight
from gradspace.objectives.relative import MeanDifference, MeanExponential
from gradspace.parameters import Positive, Real


@pair_weight("constant", source="GOAL eq. 9")
def constant(p: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """1 and 1."""
    return torch.ones_like(p), torch.ones_like(n)


@pair_weight("linear", source="GOAL eq. 10")
def linear(p: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """1 - p and max(n, 0): a negative that is already far away is not pushed."""
    return 1 - p, n.clamp(min=0)


@pair_weight("sigmoid", source="GOAL eq. 11")
def sigmoid(
    p: Tensor, n: Tensor, *, alpha: Positive = 2.0, beta: Positive = 10.0, base: Real = 0.5
) -> tuple[Tensor, Tensor]:
    """1 / (1 + exp(alpha (p - base))) and 1 / (1 + exp(-beta (n - base)))."""
    return torch.sigmoid(alpha * (base - p)), torch.sigmoid(beta * (n - base))


@pair_weight("linear-ms", source="GOAL eq. 13", relative=MeanDifference)
def linear_ms(
    p: Tensor, n: Tensor, m_positive: Tensor, m_negative: Tensor
) -> tuple[Tensor, Tensor]:
    """(1 - m+)(1 - p) and (1 + m-) max(n, 0), m the mean difference from the relative sets."""
    return (1 - m_positive) * (1 - p), (1 + m_negative) * n.clamp(min=0)


@pair_weight("sigmoid-ms", source="GOAL eq. 12", relative=MeanExponential)
def sigmoid_ms(
    p: Tensor,
    n: Tensor,
    m_positive: Tensor,
    m_negative: Tensor,
    *,
    alpha: Positive = 2.0,
    beta: Positive = 10.0,
    base: Real = 0.5,
) -> tuple[Tensor, Tensor]:
    """1 / (m+ + exp(alpha (p - base))) and 1 / (m- + exp(-beta (n - base))), m mean exponentials.

    With m+ = m- = 1 this is the sigmoid weight. Where equation 12 and the paper's text contradict
    each other, the equation is followed.
    """
    positive = 1 / (m_positive + torch.exp(alpha * (p - base)))
    return positive, 1 / (m_negative + torch.exp(-beta * (n - base)))
