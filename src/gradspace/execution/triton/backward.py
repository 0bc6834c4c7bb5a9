"""Gradients of a block's sums: weights from a Triton kernel, matrix products from the library."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradspace.execution.block import Gradients, Sides, Upstream, is_shared
from gradspace.execution.triton import launching
from gradspace.execution.triton.asked import (
    Given,
    given_of,
    given_values,
    kind_of,
    num_columns,
    translated,
)
from gradspace.execution.triton.launching import Inputs, Tile, ceil, on_a_tile_that_fits

WEIGHT_BYTES = 256 << 20
"""Bytes that the weights of a chunk of rows may take."""


def backward(inputs: Inputs, upstream: Sequence[Upstream]) -> Gradients:
    what = (inputs.rows.dtype, *(translated(up.wanted).term for up in upstream))
    return on_a_tile_that_fits(
        inputs.tiles(launching.WEIGHTS), what, lambda tile: _backward_with(tile, inputs, upstream)
    )


def _backward_with(tile: Tile, inputs: Inputs, upstream: Sequence[Upstream]) -> Gradients:
    """Compute the weights of one chunk of rows at a time, and multiply them with the embeddings.

    The weights have the type of the embeddings. They are divided by the largest gradient, so that
    float16 can hold those of a mean over many queries.
    """
    factors = _factors(upstream)
    of_columns = inputs.columns.new_zeros(inputs.m, inputs.width, dtype=torch.float32)
    of_rows = inputs.rows.new_empty(inputs.n, inputs.width)
    givens = [given_of(inputs, up.wanted) for up in upstream]
    of_given: list[list[tuple[Tensor, Tensor]]] = [[] for _ in upstream]
    width = ceil(inputs.m, 64) * 64  # what the kernel writes must be aligned
    chunks = inputs.chunks(tile.height, width * inputs.rows.element_size(), WEIGHT_BYTES)
    memory = inputs.rows.new_empty(chunks[0].stop, width)
    for chunk in chunks:
        weights = memory[: chunk.stop - chunk.start, : inputs.m]
        rows = of_columns.new_zeros(len(weights), inputs.width)
        for k, up in enumerate(upstream):
            if part := weigh(tile, inputs, up, factors, givens[k], chunk, weights):
                of_given[k].append(part)
            add_product(rows, weights, inputs.columns[:, : inputs.width])
            add_product(of_columns, weights.t(), inputs.rows[chunk, : inputs.width])
        of_rows[chunk] = rows.div_(factors[0])
    parts = [_together(up, of_given[k], factors[0]) for k, up in enumerate(upstream)]
    return Gradients(of_rows, of_columns.div_(factors[0]), parts)


def _together(
    up: Upstream, of_given: Sequence[tuple[Tensor, Tensor]], factor: Tensor
) -> Sides[Tensor]:
    """Merge the gradients of a sum's given numbers over the chunks, without the factor."""
    if not of_given:
        return Sides(None, None)
    by_row = torch.cat([row for row, _ in of_given], 1) if up.wanted.row else None
    by_column = torch.stack([column for _, column in of_given]).sum(0) if up.wanted.column else None
    return Sides(*(None if part is None else part.t() / factor for part in (by_row, by_column)))


def weigh(
    tile: Tile,
    inputs: Inputs,
    up: Upstream,
    factors: Tensor,
    given: Given,
    chunk: slice,
    weights: Tensor,
    single: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor] | None:
    """Write the weights that one sum gives to a chunk of rows; return the gradients of `given`.

    The gradients arriving at the rows' and the columns' sums are multiplied by the two factors, as
    are the slopes along `single` positives of both sides, whose weights are written as well.
    """
    from triton.tools.tensor_descriptor import TensorDescriptor

    from gradspace.execution.triton import kernels

    wanted, functions = up.wanted, translated(up.wanted)
    by_row, by_column = num_columns(wanted.row), num_columns(wanted.column)
    to_given = wanted.either.given.requires_grad
    parts = (factors, factors)
    if to_given:
        parts = (
            inputs.empty(ceil(inputs.m, tile.width), by_row, len(weights)),
            inputs.empty(ceil(len(weights), tile.height), by_column, inputs.m),
        )
    sides: list[Tensor] = []
    of_given = given_values(wanted, given, chunk)
    for side, queries, k in (("row", chunk, 0), ("column", slice(None), 1)):
        part = parts[k]
        sides += [of_given[k]]
        result, gradient = getattr(up.results, side), getattr(up.gradients, side)
        if result is None:
            sides += [part, part]
        else:
            sides += [result[queries].contiguous(), gradient[queries].contiguous()]
        sides += [part]
    inputs.launch(
        kernels.weights,
        tile,
        chunk,
        TensorDescriptor.from_tensor(weights, [tile.height, tile.width]),
        factors,
        *sides,
        *((single[0][chunk], single[1]) if single else (factors, factors)),
        SINGLE=single is not None,
        TERM=functions.term,
        DERIVATIVES=functions.derivatives,
        KIND=kind_of(wanted),
        VANISHES=functions.vanishes,
        SHARED=is_shared(wanted),
        BY_ROW=by_row,
        BY_COLUMN=by_column,
        TO_GIVEN=to_given,
    )
    return (parts[0].sum(0), parts[1].sum(0)) if to_given else None


def _factors(upstream: Sequence[Upstream]) -> Tensor:
    """Factors that make the largest gradient 1, leaving float16's range to term derivatives."""
    sides = (side for up in upstream for side in (up.gradients.row, up.gradients.column))
    largest = torch.stack([side.abs().max() for side in sides if side is not None]).max()
    return (1 / largest.clamp(min=1e-30)).repeat(2)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right to total in float32, even for 16-bit factors."""
    if left.dtype == torch.float32:
        total.addmm_(left, right)
    else:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
