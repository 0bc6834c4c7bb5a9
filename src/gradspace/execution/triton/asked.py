"""Sums requested from the Triton kernels: their formulas, and the numbers given to these."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from gradspace.execution.block import Sides, is_shared
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
    """Numbers given to the terms of both sides; a single one if the sides share their terms."""

    row: Tensor
    column: Tensor


def given_of(inputs: Inputs, wanted: Asked) -> Given:
    if not is_shared(wanted):
        row, column = (
            (side or wanted.either).given.detach().float().contiguous()
            for side in (wanted.row, wanted.column)
        )
        return Given(row, column)
    number = wanted.either.given[:1].detach().float()
    return Given(number, number)


def with_reference(inputs: Inputs, wanted: Asked, given: Given) -> Given:
    """Append a reference for exponentials, and whether it serves them all, to a single number."""
    if not is_shared(wanted) or kind_of(wanted) != 2:
        return given
    from gradspace.execution.triton import kernels

    found = inputs.empty(3)
    kernels.reference[(1,)](
        given.row, inputs.squares, found, TERM=translated(wanted).term, SIZE=1024
    )
    return Given(found, found)


class _Formula:
    """A term as a cache key: two are equal if they are the same code with the same parameters."""

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
    """Numbers given to a chunk of rows and to all columns."""
    return given.row if is_shared(one) else given.row[rows], given.column
