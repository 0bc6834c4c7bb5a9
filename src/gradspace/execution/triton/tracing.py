"""Tracing of an objective, called with examples that record what it asks of its positives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradspace.execution.triton.graphs import UnsupportedTermError
from gradspace.objectives.contract import Objective
from gradspace.objectives.statistics import Hardest, PositiveScores, Statistic, Term

QUERIES, SLOTS = 2, 3
"""Shape of the examples on which formulas are traced."""
POSITIVES = ("p", "positive", "num_negatives", "smallest")


class LimitFoundError(Exception):
    """Ends a trace as soon as the limit of a sum over the batch is known."""

    def __init__(self, limit: Tensor) -> None:
        self.limit = limit


@dataclass(frozen=True)
class _Traced(PositiveScores):
    """Positives whose sums, over others and over the batch, are inputs of the traced function."""

    smallest: Tensor = None  # type: ignore[assignment]
    over_others: tuple[Tensor, ...] = ()
    over_batch: tuple[Tensor, ...] = ()
    terms: list[Term] | None = None
    """Terms of the sums over others, in the order in which they were requested."""
    functions: list[Callable[[Tensor], Tensor]] | None = None
    """Functions of the sums over the batch that were requested."""
    asked: list[str] | None = None
    """Names of the other requests about the batch."""

    @property
    def smallest_in_batch(self) -> Tensor:
        if self.asked is not None:
            self.asked.append("smallest")
        return self.smallest

    def sum_over_others(self, term: Term) -> Tensor:
        assert self.terms is not None
        self.terms.append(term)
        return self.over_others[len(self.terms) - 1]

    def sum_in_batch(
        self, limit: Tensor, function: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        assert self.functions is not None
        self.functions.append(function)
        if not self.over_batch:
            raise LimitFoundError(limit)
        return self.over_batch[0], self.over_batch[1]


def column() -> Tensor:
    return torch.full((QUERIES, 1), 0.3)


def matrix() -> Tensor:
    return torch.full((QUERIES, SLOTS), 0.2)


def by_slot(one: Statistic) -> bool:
    """Whether its term is given a different number for every positive."""
    return not isinstance(one, Hardest) and one.given.shape[1] > 1


def example_of(one: Statistic) -> Tensor:
    return matrix() if by_slot(one) else column()


class TracedObjective:
    """An objective's requests, and each of its parts as a function of tensors."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.positives = (
            matrix(),
            torch.ones(QUERIES, SLOTS, dtype=torch.bool),
            column(),
            torch.tensor([0.2]),
        )
        self.asked: list[str] = []
        with torch.no_grad():
            self.wanted = tuple(objective.statistics(self._traced(*self.positives)))
        self.others = self._ask_value().terms or []
        functions = self._ask_value().functions or []
        if len(functions) > 1:
            raise UnsupportedTermError("more than one sum over the batch")
        self.of_batch = functions[0] if functions else None

    # --- requests -------------------------------------------------------------------------------

    def _traced(self, p: Tensor, valid: Tensor, num: Tensor, smallest: Tensor) -> _Traced:
        return _Traced(
            *(p, valid, num, torch.empty(0)),
            smallest=smallest,
            terms=[],
            functions=[],
            asked=self.asked,
        )

    def _ask_value(self) -> _Traced:
        """Call value once and record what it asks of the positives."""
        traced = replace(
            self._traced(*self.positives),
            over_others=tuple(matrix() for _ in range(9)),
            over_batch=(column(), column()),
        )
        with torch.no_grad():
            self.objective.value(traced, *map(example_of, self.wanted))
        return traced

    # --- functions to trace ---------------------------------------------------------------------

    def given(self, k: int) -> Callable[..., tuple[Tensor, ...]]:
        def given(*positives: Tensor) -> tuple[Tensor, ...]:
            one = self.objective.statistics(self._traced(*positives))[k]
            assert not isinstance(one, Hardest)
            return (one.given + torch.zeros_like(one.given),)  # a node of the graph

        return given

    def gives(self, k: int) -> bool:
        """Whether the k-th term's `given` depends differentiably on the positives' scores."""
        with torch.enable_grad():
            p, *rest = self.positives
            one = self.objective.statistics(self._traced(p.clone().requires_grad_(), *rest))[k]
            assert not isinstance(one, Hardest)
            return one.given.requires_grad

    def fixed(self) -> bool:
        """Whether every term is given a single number that does not depend on the positives."""
        p, valid, num, smallest = self.positives
        others = self._traced(p + 0.1, valid.logical_not(), num + 1, smallest - 0.3)
        return all(
            isinstance(one, Hardest) or (one.shared and torch.equal(one.given, other.given))
            for one, other in zip(self.wanted, self.objective.statistics(others), strict=True)
            if not isinstance(other, Hardest)
        )

    def pull_back(self, k: int, inputs: Sequence[Tensor]) -> Tensor:
        p, *rest, of_given = inputs
        p = p.requires_grad_()
        one = self.objective.statistics(self._traced(p, *rest))[k]
        assert not isinstance(one, Hardest)
        return torch.autograd.grad(one.given, p, of_given)[0] + 0 * p.detach()

    def _split(self, inputs: Sequence[Tensor]) -> tuple[_Traced, Sequence[Tensor]]:
        """Split the inputs of value into positives and statistics."""
        first, last = len(POSITIVES), len(POSITIVES) + len(self.wanted)
        end = last + len(self.others)
        traced = replace(
            self._traced(*inputs[:first]),
            over_others=tuple(inputs[last:end]),
            over_batch=tuple(inputs[end:]),
        )
        return traced, inputs[first:last]

    def limit(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        traced, statistics = self._split(inputs)
        try:
            self.objective.value(traced, *statistics)
        except LimitFoundError as found:
            return (found.limit.float(),)
        raise AssertionError("no sum over the batch")

    def values(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        traced, statistics = self._split(inputs)
        return (self.objective.value(traced, *statistics),)

    def differentiate(self, inputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """Derivatives of value by the positives' scores, the statistics and the sums over others.

        The k-th is None if value does not depend on the k-th of these.
        """
        p, valid, num, smallest, *rest = inputs
        num_slopes = len(self.wanted) + len(self.others)
        p, along = p.requires_grad_(), [x.requires_grad_() for x in rest[:num_slopes]]
        (value,) = self.values(p, valid, num, smallest, *along, *rest[num_slopes:])
        if not value.requires_grad:
            return (None,) * (1 + num_slopes)
        return torch.autograd.grad(value, [p, *along], torch.ones_like(value), allow_unused=True)

    def slopes(self, examples: Sequence[Tensor]) -> list[int]:
        """Indices of the derivatives that exist."""
        with torch.enable_grad():
            copies = [x.clone() for x in (*self.positives, *examples)]
            found = self.differentiate(copies)
        return [k for k, slope in enumerate(found) if slope is not None]
