"""Translation of statistics' terms to Triton: `term(score, given)` and its derivatives by both."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gradspace.execution.triton.graphs import compile_graph, trace
from gradspace.objectives.statistics import Term

INPUTS = ("s", "given")


class Translated(NamedTuple):
    """Triton functions of (score, given): a term, and its derivatives by both."""

    term: Any
    derivatives: Any
    vanishes: bool
    """Whether a score of -inf, which marks what is not a negative, contributes nothing."""


def translate(formula: Term, vanished: float) -> Translated:
    """Translate a term; one of at most `vanished` adds nothing to its statistic."""
    example = torch.tensor([[0.1, 0.2]])

    def derivatives(s: Tensor, given: Tensor) -> tuple[Tensor, ...]:
        s, given = s.requires_grad_(), given.requires_grad_()
        value = formula(s, given)
        if not value.requires_grad:  # a count
            return torch.zeros_like(s), torch.zeros_like(given)
        one = torch.ones_like(value)
        found = torch.autograd.grad(value, (s, given), one, allow_unused=True)
        return tuple(torch.zeros_like(s) if d is None else d for d in found)

    arguments = (example, example.clone())
    first = trace(derivatives, *arguments, differentiate=True)
    zeroth = trace(lambda s, g: (formula(s, g),), *arguments, differentiate=False)
    with torch.enable_grad():
        far = torch.full_like(example, -torch.inf)
        at_far = formula(far, example)
        slopes = torch.stack(derivatives(far, example.clone()))
    vanishes = (at_far <= vanished).all() and not at_far.isnan().any()
    slopes_vanish = (slopes == 0).all() if vanished == 0 else slopes.isfinite().all()
    return Translated(
        compile_graph("term", INPUTS, zeroth),
        compile_graph("derivatives", INPUTS, first),
        bool(vanishes and slopes_vanish),
    )
