"""Sums that the Triton kernels are asked for: their formulas, and what these are given."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gradspace.execution.block import Sides, is_shared
from gradspace.execution.streamed import SAFE_RANGE
from gradspace.execution.triton.launching import Inputs
from gradspace.objectives.statistics import LOG_ZERO, LogSumExp, Sum

if TYPE_CHECKING:
    from gradspace.execution.triton.terms import Translated

Asked = Sides[Sum | LogSumExp]


def kind_of(wanted: Asked) -> int:
    return 2 if isinstance(wanted.either, LogSumExp) else 1


def num_columns(side: Sum | LogSumExp | None) -> int:
    return side.given.shape[1] if side else 0


class Given(NamedTuple):
    """What the terms of both sides are given, and whether one reference serves all powers."""

    row: Tensor
    column: Tensor
    is_safe: bool


def given_of(inputs: Inputs, wanted: Asked) -> Given:
    """Where both sides share their terms, it is one number, and behind it the reference."""
    if not is_shared(wanted):
        row, column = (
            (side or wanted.either).given.detach().float().contiguous()
            for side in (wanted.row, wanted.column)
        )
        return Given(row, column, False)
    number = wanted.either.given[:1].detach().float()
    if kind_of(wanted) == 1:
        return Given(number, number, False)
    bound = inputs.bound() * 1.01
    terms = wanted.either.term(torch.linspace(-1, 1, 1025, device=bound.device) * bound, number)
    highest = terms.max()
    lowest = terms.where(terms > LOG_ZERO / 2, highest).min()
    number = torch.cat([number.flatten(), highest[None]])
    return Given(number, number, bool(highest - lowest < SAFE_RANGE))


class _Formula:
    """A term; equal to another that is the same code with the same parameters."""

    def __init__(self, term: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.term = term
        function = getattr(term, "__func__", term)
        held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
        self.key = (getattr(function, "__code__", term), repr([getattr(term, "__self__", 0), held]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Formula) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def translated(wanted: Asked) -> Translated:
    return _translate(_Formula(wanted.either.term), kind_of(wanted))


@cache
def _translate(formula: _Formula, kind: int) -> Translated:
    from gradspace.execution.triton.terms import translate

    return translate(formula.term, 0.0 if kind == 1 else LOG_ZERO)


def given_values(one: Asked, given: Given, rows: slice) -> tuple[Tensor, Tensor]:
    """For a chunk of rows and all columns."""
    return given.row if is_shared(one) else given.row[rows], given.column
