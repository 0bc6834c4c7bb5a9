"""Fused execution on CUDA: Triton kernels for the scores, library products for the gradients.

`kernels.py` has the kernels, `terms.py` turns the formulas of the objectives into their innards.
The hardest negative carries maxima only, one per query and tile; which candidate it is comes from
computing one tile-wide block again, with the queries sorted by their block.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from gradspace.execution.block import (
    Block,
    Found,
    Gradients,
    Result,
    Sides,
    Upstream,
    Wanted,
    is_shared,
)
from gradspace.execution.statistics import LOG_ZERO, Hardest, LogSumExp, Sum
from gradspace.execution.streamed import SAFE_RANGE, Streamed
from gradspace.execution.tiles import blocks

if TYPE_CHECKING:
    from gradspace.execution.terms import Translated

T = TypeVar("T")

CHUNK_BYTES = 16 << 20
"""Of one partial result of a chunk of rows."""
WEIGHT_BYTES = 256 << 20
"""Of the weights of a chunk of rows."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def is_available(values: Tensor) -> bool:
    """Are there kernels for these values here?"""
    return values.is_cuda and values.dtype in DTYPES and find_spec("triton") is not None


def suits(values: Tensor) -> bool:
    """Are the kernels the fastest way? Full float32 products are better left to the library."""
    return is_available(values) and not _is_full_float32(values)


def _is_full_float32(values: Tensor) -> bool:
    return values.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32


@dataclass(frozen=True)
class Fused:
    """The executor; the streamed one takes over where the kernels do not compile."""

    def forward(self, block: Block, wanted: Sequence[Wanted]) -> list[Result]:
        return _or_else(
            lambda: _forward(_Inputs(block), wanted), lambda: Streamed().forward(block, wanted)
        )

    def backward(self, block: Block, upstream: Sequence[Upstream]) -> Gradients:
        return _or_else(
            lambda: _backward(_Inputs(block), upstream),
            lambda: Streamed().backward(block, upstream),
        )


@cache
def _warn(reason: str) -> None:
    """Once per reason."""
    warnings.warn(
        f"the Triton kernels cannot be used here ({reason}); the streamed execution takes their "
        "place",
        stacklevel=4,
    )


def _or_else(fused: Callable[[], T], streamed: Callable[[], T]) -> T:
    from triton.errors import TritonError

    from gradspace.execution.terms import UnsupportedTermError

    try:
        return fused()
    except (UnsupportedTermError, TritonError) as error:
        _warn(str(error).strip().partition("\n")[0])
        return streamed()


# --- tiles --------------------------------------------------------------------------------------


class Tile(NamedTuple):
    """How a kernel is compiled: the shape of its tile, the depth of a step, and Triton's knobs."""

    height: int
    width: int
    depth: int
    stages: int
    warps: int
    registers: int | None = None


# In the order of their speed on an H200, where three tiles of 168 registers per thread, or two of
# the weights, share a multiprocessor; the first that a device can hold is taken.
STATISTICS = (Tile(128, 128, 64, 2, 4, 168),)
WEIGHTS = (Tile(128, 128, 64, 3, 4), Tile(128, 128, 64, 2, 8))
FLOAT32 = (Tile(128, 128, 32, 3, 8),)
SMALLEST = Tile(64, 64, 32, 2, 4)
RECOVER = Tile(64, 0, 64, 3, 4)
PAIRS, WIDTH = 4, 256

_too_large: set[tuple[Tile, Any]] = set()


def _on_a_tile_that_fits(tiles: Sequence[Tile], what: Any, run: Callable[[Tile], T]) -> T:
    from triton.runtime.errors import OutOfResources

    for tile in tiles:
        if (tile, what) not in _too_large:
            try:
                return run(tile)
            except OutOfResources:
                _too_large.add((tile, what))
    return run(SMALLEST)


# --- what the kernels are given -----------------------------------------------------------------


class _Inputs:
    """A block as the kernels read it: rows that are aligned, and ids of 32 bits."""

    def __init__(self, block: Block) -> None:
        self.rows, self.columns = _aligned(block.rows), _aligned(block.columns)
        self.row_ids, self.column_ids = _short_ids(block.row_ids, block.column_ids)
        self.n, self.m, self.width = len(block.rows), len(block.columns), block.rows.shape[1]
        self.precision = "ieee" if _is_full_float32(block.rows) else "tf32"

    def tiles(self, wanted: Sequence[Tile]) -> Sequence[Tile]:
        return FLOAT32 if self.rows.dtype == torch.float32 else wanted

    def chunks(self, height: int, bytes_per_row: int, memory: int) -> list[slice]:
        """Parts of the rows, whole tiles high, that need so much memory at most."""
        size = memory // bytes_per_row // height * height
        return list(blocks(self.n, max(size, height)))

    def launch(self, kernel: Any, tile: Tile, rows: slice, *values: Any, **constants: Any) -> None:
        """Run a kernel over the tiles of some rows and all columns."""
        from triton.tools.tensor_descriptor import TensorDescriptor

        part = self.rows[rows]
        num_tiles = _ceil(len(part), tile.height) * _ceil(self.m, tile.width)
        kernel[(num_tiles,)](
            TensorDescriptor.from_tensor(part, [tile.height, tile.depth]),
            TensorDescriptor.from_tensor(self.columns, [tile.width, tile.depth]),
            self.row_ids[rows],
            self.column_ids,
            len(part),
            self.m,
            part.shape[1],
            *values,
            **constants,
            HEIGHT=tile.height,
            WIDTH=tile.width,
            DEPTH=tile.depth,
            PRECISION=self.precision,
            EVEN=len(part) % tile.height == self.m % tile.width == 0,
            num_stages=tile.stages,
            num_warps=tile.warps,
            maxnreg=tile.registers,
        )

    def transpose(self) -> _Inputs:
        other = copy(self)
        other.rows, other.columns = self.columns, self.rows
        other.row_ids, other.column_ids = self.column_ids, self.row_ids
        other.n, other.m = self.m, self.n
        return other

    def bound(self) -> Tensor:
        """No score is larger than the product of the longest vectors' lengths."""
        bound = torch.ones((), device=self.rows.device)
        for vectors in (self.rows, self.columns):
            bound = bound * torch.linalg.vector_norm(vectors, dim=1).max()
        return bound

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.rows.device)


def _ceil(count: int, size: int) -> int:
    return -(-count // size)


def _aligned(embeddings: Tensor) -> Tensor:
    """Rows that start at multiples of 16 bytes, which tensor descriptors need."""
    beyond = -embeddings.shape[1] % (16 // embeddings.element_size())
    if beyond:
        embeddings = torch.nn.functional.pad(embeddings, (0, beyond))
    return embeddings.contiguous()


def _short_ids(row_ids: Tensor, column_ids: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.cat([row_ids, column_ids])
    if int(both.abs().max()) >= 1 << 31:
        both = torch.unique(both, return_inverse=True)[1]
    row, column = torch.split(both.int(), [len(row_ids), len(column_ids)])
    return row, column.clone()  # aligned


_Asked = Sides[Sum | LogSumExp]


def _kind(wanted: _Asked) -> int:
    return 2 if isinstance(wanted.either, LogSumExp) else 1


def _num_columns(side: Sum | LogSumExp | None) -> int:
    return side.given.shape[1] if side else 0


class _Given(NamedTuple):
    """What the terms of both sides are given, and whether one reference serves all powers."""

    row: Tensor
    column: Tensor
    is_safe: bool


def _given(inputs: _Inputs, wanted: _Asked) -> _Given:
    """Where both sides share their terms, it is one number, and behind it the reference."""
    if not is_shared(wanted):
        row, column = (
            (side or wanted.either).given.detach().float().contiguous()
            for side in (wanted.row, wanted.column)
        )
        return _Given(row, column, False)
    number = wanted.either.given[:1].detach().float()
    if _kind(wanted) == 1:
        return _Given(number, number, False)
    bound = inputs.bound() * 1.01
    terms = wanted.either.term(torch.linspace(-1, 1, 1025, device=bound.device) * bound, number)
    highest = terms.max()
    lowest = terms.where(terms > LOG_ZERO / 2, highest).min()
    number = torch.cat([number.flatten(), highest[None]])
    return _Given(number, number, bool(highest - lowest < SAFE_RANGE))


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


def _translated(wanted: _Asked) -> Translated:
    return _translate(_Formula(wanted.either.term), _kind(wanted))


@cache
def _translate(formula: _Formula, kind: int) -> Translated:
    from gradspace.execution.terms import translate

    return translate(formula.term, 0.0 if kind == 1 else LOG_ZERO)


# --- forward ------------------------------------------------------------------------------------


def _forward(inputs: _Inputs, wanted: Sequence[Wanted]) -> list[Result]:
    """The kernel finds the hardest negatives and up to two sums in one pass."""
    asked = [cast(_Asked, one) for one in wanted if not isinstance(one.either, Hardest)]
    hardest = next((one for one in wanted if isinstance(one.either, Hardest)), Wanted(None, None))
    found, sums = _pass(inputs, hardest, asked[:2])
    for first in range(2, len(asked), 2):
        sums += _pass(inputs, Wanted(None, None), asked[first : first + 2])[1]
    left = iter(sums)
    return [found if isinstance(one.either, Hardest) else next(left) for one in wanted]


def _pass(inputs: _Inputs, hardest: Wanted, asked: Sequence[_Asked]) -> tuple[Result, list[Result]]:
    tiles = inputs.tiles(STATISTICS)
    what = (inputs.rows.dtype, *(_translated(one).term for one in asked))
    return _on_a_tile_that_fits(tiles, what, lambda tile: _pass_with(tile, inputs, hardest, asked))


def _pass_with(
    tile: Tile, inputs: _Inputs, hardest: Wanted, asked: Sequence[_Asked]
) -> tuple[Result, list[Result]]:
    """Chunks of rows, one after the other; what they find of the columns is put together."""
    from gradspace.execution import kernels

    across = _ceil(inputs.m, tile.width)
    most = max([1, *(max(_num_columns(one.row), _num_columns(one.column)) for one in asked)])
    of_rows: list[list[Tensor]] = [[] for _ in range(2 + len(asked))]
    of_columns: list[Tensor] = []
    givens = [_given(inputs, one) for one in asked]
    bytes_per_row = 4 * most * max(across, _ceil(inputs.m, tile.height))
    for rows in inputs.chunks(tile.height, bytes_per_row, CHUNK_BYTES):
        n, down = rows.stop - rows.start, _ceil(rows.stop - rows.start, tile.height)
        maxima = inputs.empty(across, n), inputs.empty(down, inputs.m)
        sums = [
            (
                inputs.empty(across, _num_columns(one.row), n),
                inputs.empty(down, _num_columns(one.column), inputs.m),
            )
            for one in asked
        ]
        values: list[Any] = [*maxima]
        constants: dict[str, Any] = {}
        for k, name in enumerate("AB"):
            one = asked[k] if k < len(asked) else None
            given = givens[k] if one else None
            values += _given_values(one, given, rows) if one and given else maxima
            values += sums[k] if one else maxima
            constants |= _constants(one, given, name)
        inputs.launch(
            kernels.statistics,
            tile,
            rows,
            *values,
            **constants,
            HARDEST_BY_ROW=hardest.row is not None,
            HARDEST_BY_COLUMN=hardest.column is not None,
        )
        row_sums = map(_together, asked, givens, (by_row for by_row, _ in sums))
        found = [*_best(hardest.row, maxima[0], 0), *row_sums]
        for total, part in zip(of_rows, found, strict=True):
            total.append(part)
        column_sums = map(_together, asked, givens, (by_column for _, by_column in sums))
        found = [*_best(hardest.column, maxima[1], rows.start // tile.height), *column_sums]
        of_columns = _merge(asked, givens, of_columns, found) if of_columns else found
    best_by_row, tiles_by_row, *by_row = (torch.cat(parts, -1) for parts in of_rows)
    best_by_column, tiles_by_column, *by_column = of_columns
    return Result(
        Found(best_by_row, recover(inputs, tiles_by_row, tile.width)) if hardest.row else None,
        Found(best_by_column, recover(inputs.transpose(), tiles_by_column, tile.height))
        if hardest.column
        else None,
    ), [
        Result(
            _finished(one, given, row) if one.row else None,
            _finished(one, given, column) if one.column else None,
        )
        for one, given, row, column in zip(asked, givens, by_row, by_column, strict=True)
    ]


def _given_values(one: _Asked, given: _Given, rows: slice) -> tuple[Tensor, Tensor]:
    """For a chunk of rows and all columns."""
    return given.row if is_shared(one) else given.row[rows], given.column


def _constants(one: _Asked | None, given: _Given | None, name: str) -> dict[str, Any]:
    return {
        f"VANISHES_{name}": _translated(one).vanishes if one else False,
        f"SAFE_{name}": given.is_safe if given else False,
        f"TERM_{name}": _translated(one).term if one else None,
        f"KIND_{name}": _kind(one) if one else 0,
        f"SHARED_{name}": one is not None and is_shared(one),
        f"BY_ROW_{name}": _num_columns(one.row) if one else 0,
        f"BY_COLUMN_{name}": _num_columns(one.column) if one else 0,
    }


def _best(wanted: Any, maxima: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """The highest of each query, and the number of the tile that has it."""
    if not wanted:
        return maxima[0, :0], maxima[0, :0].long()
    value, tile = maxima.max(0)
    return value, tile + first


def _together(one: _Asked, given: _Given, parts: Tensor) -> Tensor:
    """[columns of given, queries], from partial results."""
    return parts.logsumexp(0) if _kind(one) == 2 and not given.is_safe else parts.sum(0)


def _finished(one: _Asked, given: _Given, total: Tensor) -> Tensor:
    """[queries, columns of given]"""
    if given.is_safe:
        total = total.log() + given.row[1]
    return (total if _kind(one) == 1 else total.clamp(min=LOG_ZERO)).t().contiguous()


def _merge(
    asked: Sequence[_Asked], givens: Sequence[_Given], before: list[Tensor], now: list[Tensor]
) -> list[Tensor]:
    better = now[0] > before[0]
    best = [new.where(better, old) for new, old in zip(now[:2], before[:2], strict=True)]
    pairs = map(torch.stack, zip(before[2:], now[2:], strict=True))
    return best + list(map(_together, asked, givens, pairs))


def recover(inputs: _Inputs, tile_of: Tensor, width: int) -> Tensor:
    """Which column of its best tile each row has its highest score with, -1 for none.

    The rows are sorted by that tile, so that programs of a few rows each compute it again.
    """
    from gradspace.execution import kernels

    order = tile_of.argsort(stable=True)
    num_tiles = _ceil(inputs.m, width)
    ends = torch.searchsorted(
        tile_of[order], torch.arange(num_tiles, device=order.device), right=True
    )
    starts = torch.nn.functional.pad(ends, (1, 0))[:-1]
    num_programs = (ends - starts + RECOVER.height - 1) // RECOVER.height
    last = num_programs.cumsum(0)
    program = torch.arange(num_tiles + inputs.n // RECOVER.height, device=order.device)
    tile = torch.searchsorted(last, program, right=True)
    exists, tile = tile < num_tiles, tile.clamp(max=num_tiles - 1)
    start = starts[tile] + (program - last[tile] + num_programs[tile]) * RECOVER.height
    end = torch.minimum(start + RECOVER.height, ends[tile])
    found = torch.empty_like(tile_of)
    kernels.recover[(len(program),)](
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
        QUERIES=RECOVER.height,
        WIDTH=width,
        DEPTH=RECOVER.depth // (2 if inputs.rows.dtype == torch.float32 else 1),
        PRECISION=inputs.precision,
        num_stages=RECOVER.stages,
        num_warps=RECOVER.warps,
    )
    return found


# --- backward -----------------------------------------------------------------------------------


def _backward(inputs: _Inputs, upstream: Sequence[Upstream]) -> Gradients:
    what = (inputs.rows.dtype, *(_translated(up.wanted).term for up in upstream))
    return _on_a_tile_that_fits(
        inputs.tiles(WEIGHTS), what, lambda tile: _backward_with(tile, inputs, upstream)
    )


def _backward_with(tile: Tile, inputs: _Inputs, upstream: Sequence[Upstream]) -> Gradients:
    """The weights of a chunk of rows at a time, and two products of them with the embeddings.

    The weights are in the type of the embeddings. They are scaled by the largest gradient, so that
    float16 can hold those of a mean over many queries.
    """
    scale = _scale(upstream)
    of_columns = inputs.columns.new_zeros(inputs.m, inputs.width, dtype=torch.float32)
    of_rows = inputs.rows.new_empty(inputs.n, inputs.width)
    givens = [_given(inputs, up.wanted) for up in upstream]
    given_by_row: list[list[Tensor]] = [[] for _ in upstream]
    given_by_column = [inputs.empty(_num_columns(up.wanted.column), inputs.m) for up in upstream]
    for part in given_by_column:
        part.zero_()
    width = _ceil(inputs.m, 64) * 64  # what the kernel writes must be aligned
    chunks = inputs.chunks(tile.height, width * inputs.rows.element_size(), WEIGHT_BYTES)
    memory = inputs.rows.new_empty(chunks[0].stop, width)
    for chunk in chunks:
        weights = memory[: chunk.stop - chunk.start, : inputs.m]
        rows = of_columns.new_zeros(len(weights), inputs.width)
        for k, up in enumerate(upstream):
            by_row, by_column = _weigh(tile, inputs, up, givens[k], scale, chunk, weights)
            given_by_row[k].append(by_row)
            given_by_column[k] += by_column
            _add_product(rows, weights, inputs.columns[:, : inputs.width])
            _add_product(of_columns, weights.t(), inputs.rows[chunk, : inputs.width])
        of_rows[chunk] = rows.div_(scale)
    return Gradients(
        of_rows,
        of_columns.div_(scale),
        [
            Sides(
                torch.cat(given_by_row[k], 1).t() / scale if up.wanted.row else None,
                given_by_column[k].t() / scale if up.wanted.column else None,
            )
            for k, up in enumerate(upstream)
        ],
    )


def _weigh(
    tile: Tile,
    inputs: _Inputs,
    up: Upstream,
    given: _Given,
    scale: Tensor,
    chunk: slice,
    weights: Tensor,
) -> tuple[Tensor, Tensor]:
    """Write the weights that one sum gives to a chunk of rows; return the gradients of `given`."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    from gradspace.execution import kernels

    wanted, translated = up.wanted, _translated(up.wanted)
    by_row, by_column = _num_columns(wanted.row), _num_columns(wanted.column)
    to_given = wanted.either.given.requires_grad
    parts = (
        inputs.empty(_ceil(inputs.m, tile.width) if to_given else 0, by_row, len(weights)),
        inputs.empty(_ceil(len(weights), tile.height) if to_given else 0, by_column, inputs.m),
    )
    sides: list[Tensor] = []
    of_given = _given_values(wanted, given, chunk)
    for side, queries, k in (("row", chunk, 0), ("column", slice(None), 1)):
        part = parts[k]
        sides += [of_given[k]]
        result, gradient = getattr(up.results, side), getattr(up.gradients, side)
        if result is None:
            sides += [part, part]
        else:
            sides += [result[queries].contiguous(), (gradient[queries] * scale).contiguous()]
        sides += [part]
    inputs.launch(
        kernels.weights,
        tile,
        chunk,
        TensorDescriptor.from_tensor(weights, [tile.height, tile.width]),
        *sides,
        TERM=translated.term,
        DERIVATIVES=translated.derivatives,
        KIND=_kind(wanted),
        VANISHES=translated.vanishes,
        SHARED=is_shared(wanted),
        BY_ROW=by_row,
        BY_COLUMN=by_column,
        TO_GIVEN=to_given,
    )
    return parts[0].sum(0), parts[1].sum(0)


def _scale(upstream: Sequence[Upstream]) -> Tensor:
    """Makes the largest gradient 1; the derivatives of terms have the rest of float16's range."""
    sides = (side for up in upstream for side in (up.gradients.row, up.gradients.column))
    largest = torch.stack([side.abs().max() for side in sides if side is not None]).max()
    return 1 / largest.clamp(min=1e-30)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right; float32, also of factors of 16 bits."""
    if left.dtype == torch.float32:
        total.addmm_(left, right)
    else:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)


# --- pairs --------------------------------------------------------------------------------------


def pair_scores(rows: Tensor, columns: Tensor, row: Tensor | None, column: Tensor | None) -> Tensor:
    """As `pairs.pair_scores`."""
    from gradspace.execution import kernels

    rows, columns = rows.contiguous(), columns.contiguous()
    number = torch.arange(max(len(rows), len(columns)), device=rows.device)
    row, column = number if row is None else row, number if column is None else column
    scores = torch.empty(min(len(row), len(column)), dtype=torch.float32, device=rows.device)
    if len(scores):
        kernels.scores_of_pairs[(len(scores),)](
            rows, columns, row, column, scores, rows.shape[1], WIDTH=WIDTH, num_warps=1
        )
    return scores


def weighted_sums(
    weights: Tensor, of: Tensor, source: Tensor | None, target: Tensor | None, num: int
) -> Tensor:
    """As `pairs.weighted_sums`: pairs sorted by their target, one program per target."""
    from gradspace.execution import kernels

    if target is None:
        ends = torch.arange(1, num + 1, device=of.device)
    else:
        order = target.argsort(stable=True)
        ends = torch.searchsorted(target[order], torch.arange(num, device=of.device), right=True)
        weights, source = weights[order], order if source is None else source[order]
    of = of.contiguous()
    sums = torch.empty(num, of.shape[1], dtype=of.dtype, device=of.device)
    kernels.sums_of_pairs[(num, _ceil(of.shape[1], WIDTH))](
        weights.float().contiguous(),
        of,
        ends - 1 if source is None else source,
        ends,
        sums,
        of.shape[1],
        PAIRS=PAIRS,
        WIDTH=WIDTH,
        num_warps=1,
    )
    return sums
