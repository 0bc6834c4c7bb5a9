"""Statistics of a block, in one pass of a Triton kernel over its tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from gradspace.execution.block import HardestNegatives, Result, Wanted, is_shared
from gradspace.execution.triton import launching
from gradspace.execution.triton.asked import (
    Asked,
    Given,
    given_of,
    given_values,
    kind_of,
    num_columns,
    translated,
    with_reference,
)
from gradspace.execution.triton.launching import Inputs, Tile, ceil, on_a_tile_that_fits
from gradspace.objectives.statistics import LOG_ZERO, Hardest

CHUNK_BYTES = 16 << 20
"""Bytes that one partial result of a chunk of rows may take."""
LARGE = 1 << 28
"""Scores from which a kernel for each case is faster than one for both, at the cost of a launch."""
NO, YES, EITHER = 0, 1, 2
"""Whether one reference serves all exponentials of a sum, as `kernels.statistics` counts."""


def forward(inputs: Inputs, wanted: Sequence[Wanted]) -> list[Result]:
    """Compute the statistics; one pass finds the hardest negatives and up to two sums."""
    asked = [cast(Asked, one) for one in wanted if not isinstance(one.either, Hardest)]
    hardest = next((one for one in wanted if isinstance(one.either, Hardest)), Wanted(None, None))
    found, sums = _pass(inputs, hardest, asked[:2])
    for first in range(2, len(asked), 2):
        sums += _pass(inputs, Wanted(None, None), asked[first : first + 2])[1]
    left = iter(sums)
    return [found if isinstance(one.either, Hardest) else next(left) for one in wanted]


def _pass(inputs: Inputs, hardest: Wanted, asked: Sequence[Asked]) -> tuple[Result, list[Result]]:
    tiles = inputs.tiles(launching.STATISTICS)
    what = (inputs.rows.dtype, *(translated(one).term for one in asked))
    return on_a_tile_that_fits(tiles, what, lambda tile: _pass_with(tile, inputs, hardest, asked))


def _pass_with(
    tile: Tile, inputs: Inputs, hardest: Wanted, asked: Sequence[Asked]
) -> tuple[Result, list[Result]]:
    """Run the kernel on one chunk of rows after the other, merging what they find by column."""
    across = ceil(inputs.m, tile.width)
    most = max([1, *(max(num_columns(one.row), num_columns(one.column)) for one in asked)])
    of_rows: list[list[Tensor]] = [[] for _ in range(2 + len(asked))]
    of_columns: list[Tensor] = []
    givens = [with_reference(inputs, one, given_of(inputs, one)) for one in asked]
    bytes_per_row = 4 * most * max(across, ceil(inputs.m, tile.height))
    for rows in inputs.chunks(tile.height, bytes_per_row, CHUNK_BYTES):
        parts = partial_results(tile, inputs, hardest, asked, givens, rows, index=False)
        row_sums = map(_together, asked, (by_row for by_row, _ in parts.sums))
        found = [*_best(hardest.row, parts.best[0], 0), *row_sums]
        for total, part in zip(of_rows, found, strict=True):
            total.append(part)
        column_sums = map(_together, asked, (by_column for _, by_column in parts.sums))
        found = [*_best(hardest.column, parts.best[1], rows.start // tile.height), *column_sums]
        of_columns = _merge(asked, of_columns, found) if of_columns else found
    best_by_row, tiles_by_row, *by_row = (torch.cat(parts, -1) for parts in of_rows)
    best_by_column, tiles_by_column, *by_column = of_columns
    return Result(
        HardestNegatives(best_by_row, recover(inputs, tiles_by_row, tile.width))
        if hardest.row
        else None,
        HardestNegatives(best_by_column, recover(inputs.transpose(), tiles_by_column, tile.height))
        if hardest.column
        else None,
    ), [
        Result(
            _finished(one, row) if one.row else None,
            _finished(one, column) if one.column else None,
        )
        for one, row, column in zip(asked, by_row, by_column, strict=True)
    ]


class TileResults(NamedTuple):
    """Results of tiles by row and by column: [tiles, queries], sums [tiles, columns, queries]."""

    best: tuple[Tensor, Tensor]
    at: tuple[Tensor, Tensor]
    sums: list[tuple[Tensor, Tensor]]


def partial_results(
    tile: Tile,
    inputs: Inputs,
    hardest: Wanted,
    asked: Sequence[Asked],
    givens: Sequence[Given],
    rows: slice,
    *,
    index: bool,
) -> TileResults:
    """Run the kernel on a chunk of rows; with `index`, record the best candidates as well."""
    from gradspace.execution.triton import kernels

    n = rows.stop - rows.start
    across, down = ceil(inputs.m, tile.width), ceil(n, tile.height)
    best = inputs.empty(across, n), inputs.empty(down, inputs.m)
    at = best
    if index:
        at = (
            torch.empty_like(best[0], dtype=torch.int32),
            torch.empty_like(best[1], dtype=torch.int32),
        )
    sums = [
        (
            inputs.empty(across, num_columns(one.row), n),
            inputs.empty(down, num_columns(one.column), inputs.m),
        )
        for one in asked
    ]
    values = [best[0], at[0], best[1], at[1]]
    constants: dict[str, Any] = {}
    for k, name in enumerate("AB"):
        one = asked[k] if k < len(asked) else None
        given = givens[k] if one else None
        values += given_values(one, given, rows) if one and given else best
        values += sums[k] if one else best
        constants |= _constants(one, name)
    one_reference = sum(kind_of(one) == 2 and is_shared(one) for one in asked) == 1
    for served in (YES, NO) if one_reference and n * inputs.m >= LARGE else (EITHER,):
        inputs.launch(
            kernels.statistics,
            tile,
            rows,
            *values,
            **constants,
            HARDEST_BY_ROW=hardest.row is not None,
            HARDEST_BY_COLUMN=hardest.column is not None,
            INDEX=index,
            SERVED=served,
        )
    return TileResults(best, at, sums)


def _constants(one: Asked | None, name: str) -> dict[str, Any]:
    return {
        f"VANISHES_{name}": translated(one).vanishes if one else False,
        f"TERM_{name}": translated(one).term if one else None,
        f"KIND_{name}": kind_of(one) if one else 0,
        f"SHARED_{name}": one is not None and is_shared(one),
        f"BY_ROW_{name}": num_columns(one.row) if one else 0,
        f"BY_COLUMN_{name}": num_columns(one.column) if one else 0,
    }


def _best(wanted: Any, maxima: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Highest score of each query, and the number of the tile that has it."""
    if not wanted:
        return maxima[0, :0], maxima[0, :0].long()
    value, tile = maxima.max(0)
    return value, tile + first


def _together(one: Asked, parts: Tensor) -> Tensor:
    """Reduce partial results to [columns of given, queries]."""
    return parts.logsumexp(0) if kind_of(one) == 2 else parts.sum(0)


def _finished(one: Asked, total: Tensor) -> Tensor:
    """Convert a total to the result of the statistic, [queries, columns of given]."""
    return (total if kind_of(one) == 1 else total.clamp(min=LOG_ZERO)).t().contiguous()


def _merge(asked: Sequence[Asked], before: list[Tensor], now: list[Tensor]) -> list[Tensor]:
    better = now[0] > before[0]
    best = [new.where(better, old) for new, old in zip(now[:2], before[:2], strict=True)]
    pairs = map(torch.stack, zip(before[2:], now[2:], strict=True))
    return best + list(map(_together, asked, pairs))


def recover(inputs: Inputs, tile_of: Tensor, width: int) -> Tensor:
    """Find the column with each row's highest score, within its best tile; -1 for none.

    The rows are sorted by that tile, so that programs of a few rows each can recompute it.
    """
    from gradspace.execution.triton import pair_kernels

    order = tile_of.argsort(stable=True)
    num_tiles = ceil(inputs.m, width)
    ends = torch.searchsorted(
        tile_of[order], torch.arange(num_tiles, device=order.device), right=True
    )
    starts = torch.nn.functional.pad(ends, (1, 0))[:-1]
    num_programs = (ends - starts + launching.RECOVER.height - 1) // launching.RECOVER.height
    last = num_programs.cumsum(0)
    program = torch.arange(num_tiles + inputs.n // launching.RECOVER.height, device=order.device)
    tile = torch.searchsorted(last, program, right=True)
    exists, tile = tile < num_tiles, tile.clamp(max=num_tiles - 1)
    start = starts[tile] + (program - last[tile] + num_programs[tile]) * launching.RECOVER.height
    end = torch.minimum(start + launching.RECOVER.height, ends[tile])
    found = torch.empty_like(tile_of)
    pair_kernels.recover[(len(program),)](
        inputs.rows,
        inputs.columns,
        inputs.row_ids,
        inputs.column_ids,
        order,
        tile,
        start,
        end.where(exists, start),
        found,
        inputs.m,
        inputs.rows.shape[1],
        QUERIES=launching.RECOVER.height,
        WIDTH=width,
        DEPTH=launching.RECOVER.depth // (2 if inputs.rows.dtype == torch.float32 else 1),
        PRECISION=inputs.precision,
        num_stages=launching.RECOVER.stages,
        num_warps=launching.RECOVER.warps,
    )
    return found
