"""Runs translated formulas, for tests of them. Triton reads its functions from files like this."""
# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _evaluate(scores, given, out, TERM: tl.constexpr, DERIVATIVES: tl.constexpr):  # noqa: N803
    x = tl.arange(0, 16)
    at = x[:, None] * 16 + x[None, :]
    s = tl.load(scores + at)
    g = tl.load(given)
    by_score, by_given = DERIVATIVES(s, g)
    tl.store(out + at, TERM(s, g))
    tl.store(out + 256 + at, by_score)
    tl.store(out + 512 + at, by_given)


def evaluate(term: object, derivatives: object, scores: Tensor, given: float) -> Tensor:
    """The term of [16, 16] scores, and its derivatives by score and by given: [3, 16, 16]."""
    out = torch.empty(3, 16, 16)
    _evaluate[(1,)](scores, torch.tensor([given]), out, TERM=term, DERIVATIVES=derivatives)
    return out
