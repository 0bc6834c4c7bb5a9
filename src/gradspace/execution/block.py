"""Block of scores that is never built, and the interface of the executors that reduce it.

An executor gets the embeddings of a block's rows and columns. It computes the statistics of the
rows' and the columns' negatives (`forward`) and the gradients of the embeddings (`backward`);
`reduce` combines the two into one differentiable function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradspace.objectives.statistics import Hardest, LogSumExp, Statistic, Sum

T = TypeVar("T")


@dataclass(frozen=True)
class Block:
    """Scores rows @ columns.T; a row and a column with equal ids are not negatives."""

    rows: Tensor
    columns: Tensor
    row_ids: Tensor
    column_ids: Tensor

    def transpose(self) -> Block:
        return Block(self.columns, self.rows, self.column_ids, self.row_ids)


@dataclass(frozen=True)
class Sides(Generic[T]):
    """A pair of values, one for the rows and one for the columns; None where a side has none."""

    row: T | None
    column: T | None

    @property
    def either(self) -> T:
        found = self.column if self.row is None else self.row
        assert found is not None
        return found


@dataclass(frozen=True)
class HardestNegatives:
    """Hardest negative of each query: its score, and its index (-1 if none), both [queries]."""

    value: Tensor
    index: Tensor


Wanted = Sides[Statistic]
"""A statistic wanted of both sides, or of one of them."""
Result = Sides[Tensor | HardestNegatives]
"""Result of a statistic: [queries, columns of given], or the hardest negatives."""


@dataclass(frozen=True)
class Upstream:
    """A sum, its results in forward, and the gradients arriving at them in backward."""

    wanted: Sides[Sum | LogSumExp]
    results: Sides[Tensor]
    gradients: Sides[Tensor]


@dataclass(frozen=True)
class Gradients:
    """Gradients of the embeddings, and of the `given` of each sum."""

    rows: Tensor
    columns: Tensor
    given: list[Sides[Tensor]]


class Executor(Protocol):
    """Computes the statistics of a block and their gradients."""

    def forward(self, block: Block, wanted: Sequence[Wanted]) -> list[Result]: ...

    def backward(self, block: Block, upstream: Sequence[Upstream]) -> Gradients: ...


def reduce(executor: Executor, block: Block, wanted: Sequence[Wanted]) -> list[Result]:
    """Compute the statistics of a block; sums are differentiable, hardest negatives are not."""
    given = [s.given for w in wanted for s in (w.row, w.column) if s and not isinstance(s, Hardest)]
    apply: Any = _Reduce.apply
    outputs = iter(apply(block.rows, block.columns, block, executor, wanted, *given))

    def result(statistic: Statistic | None) -> Tensor | HardestNegatives | None:
        if statistic is None:
            return None
        first = next(outputs)
        return HardestNegatives(first, next(outputs)) if isinstance(statistic, Hardest) else first

    return [Result(result(w.row), result(w.column)) for w in wanted]


def is_shared(wanted: Sides[Sum | LogSumExp]) -> bool:
    """Whether both sides ask for sums of the same terms."""
    return bool(wanted.row and wanted.column and wanted.row.shared and wanted.column.shared)


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        columns: Tensor,
        block: Block,
        executor: Executor,
        wanted: Sequence[Wanted],
        *given: Tensor,
    ) -> tuple[Tensor, ...]:
        outputs: list[Tensor] = []
        constant: list[Tensor] = []
        with _explained_out_of_memory(rows, columns):
            results = executor.forward(block, wanted)
        for part in (part for result in results for part in (result.row, result.column)):
            if isinstance(part, HardestNegatives):
                outputs += [part.value, part.index]
                constant += [part.value, part.index]
            elif part is not None:
                outputs.append(part)
        ctx.ids, ctx.executor, ctx.wanted = (block.row_ids, block.column_ids), executor, wanted
        ctx.mark_non_differentiable(*constant)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(rows, columns, *outputs)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        rows, columns, *outputs = ctx.saved_tensors
        pairs = iter(zip(outputs, gradients, strict=True))
        upstream = [_upstream(wanted, pairs) for wanted in ctx.wanted]
        asked = [up for up in upstream if up]
        if not asked:
            return (None,) * len(ctx.needs_input_grad)
        with _explained_out_of_memory(rows, columns):
            found = ctx.executor.backward(Block(rows, columns, *ctx.ids), asked)
        parts = iter(found.given)
        of_given: list[Tensor | None] = []
        for wanted, up in zip(ctx.wanted, upstream, strict=True):
            if isinstance(wanted.either, Hardest):
                continue
            part = next(parts) if up else Sides[Tensor](None, None)
            sides = ((wanted.row, part.row), (wanted.column, part.column))
            of_given += [gradient for statistic, gradient in sides if statistic]
        return (
            found.rows.to(rows.dtype),
            found.columns.to(columns.dtype),
            *(None, None, None),
            *of_given,
        )


def _upstream(wanted: Wanted, pairs: Iterator[tuple[Tensor, Tensor | None]]) -> Upstream | None:
    """Consume the outputs of one statistic and return its upstream; None if it has no gradient."""
    sides = [statistic for statistic in (wanted.row, wanted.column) if statistic]
    if isinstance(wanted.either, Hardest):
        for _ in sides:
            next(pairs), next(pairs)
        return None
    found = [next(pairs) for _ in sides]
    if all(gradient is None for _, gradient in found):
        return None
    results = [result for result, _ in found]
    filled = [torch.zeros_like(r) if g is None else g.contiguous() for r, g in found]

    def by_side(values: Sequence[Tensor]) -> Sides[Tensor]:
        left = iter(values)
        return Sides(next(left) if wanted.row else None, next(left) if wanted.column else None)

    return Upstream(cast(Sides[Sum | LogSumExp], wanted), by_side(results), by_side(filled))


@contextmanager
def _explained_out_of_memory(rows: Tensor, columns: Tensor) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise torch.OutOfMemoryError(
            f"{rows.device} ran out of memory on {len(rows):,} x {len(columns):,} scores; "
            "give RetrievalLoss a smaller tile, such as tile=1024, or train with gradient caching "
            f"(training.chunk): {error}"
        ) from error
