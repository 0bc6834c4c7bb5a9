"""Objectives of batches of a few thousand on a GPU: tiles of scores that are never in memory.

Forward: the scores of the positives, one pass over the tiles for the statistics, one kernel for the
values and slopes of all queries. Backward: the weights of one chunk of images at a time, and two
products of them with the embeddings. That is a dozen launches in all, and no synchronisation except
one for ids that are on the GPU or not aligned.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradspace.execution.block import Sides, Upstream, Wanted
from gradspace.execution.triton import launching
from gradspace.execution.triton.asked import Asked, given_of, translated
from gradspace.execution.triton.backward import WEIGHT_BYTES, add_product, weigh
from gradspace.execution.triton.forward import TileResults, partial_results
from gradspace.execution.triton.launching import Inputs, Tile, ceil, on_a_tile_that_fits
from gradspace.execution.triton.sides import Side, positive_of, sides_of
from gradspace.execution.triton.slots import Slots
from gradspace.execution.triton.whole_rows import functions, reduce
from gradspace.objectives.contract import Objective, Reduction
from gradspace.objectives.statistics import Hardest, Statistic

if TYPE_CHECKING:
    from gradspace.execution.triton.formulas import Functions

MOST = 1 << 29
"""Number of scores up to which this is faster than block statistics plus lists of pairs."""
MOST_BY_SLOT = 1 << 28
"""Limit for terms that are given the positives' scores: all weights are in memory at once."""
QUERIES = 32
"""Queries per program."""


def suits(objective: Objective, images: Tensor, texts: Tensor) -> bool:
    if len(images) * len(texts) > MOST:
        return False
    found = functions(objective)
    if found is None or found.query is None:
        return False
    return not _by_slot(found) or len(images) * len(texts) <= MOST_BY_SLOT


def of_embeddings(
    objective: Objective, reduction: Reduction, images: Tensor, texts: Tensor, slots: Slots
) -> Tensor:
    """Compute the reduced value of both directions."""
    apply: Any = _Tiled.apply
    value: Tensor = apply(images, texts, slots, objective, reduction, torch.is_grad_enabled())
    return value


def _by_slot(found: Functions) -> bool:
    return any(not isinstance(one, Hardest) and one.given.shape[1] > 1 for one in found.wanted)


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        texts: Tensor,
        slots: Slots,
        objective: Objective,
        reduction: Reduction,
        weigh: bool,
    ) -> Tensor:
        found = functions(objective)
        assert found is not None
        inputs = Inputs(images, texts, slots.image_ids, slots.text_ids)
        sides = sides_of(objective, inputs, slots)
        value, facts = _values(inputs, sides, found, reduction, weigh)
        ctx.save_for_backward(images, texts)
        ctx.found = inputs, sides, found, facts, objective
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, sides, found, facts, objective = ctx.found
        images, texts = ctx.saved_tensors
        small = images.dtype == torch.float16  # whose range is too small for the weights of a mean
        factors = facts[1:3] / facts[1] if small else gradient * facts[1:3]
        of_images, of_texts = _gradients(objective, inputs, sides, found, factors)
        if small:
            of_images, of_texts = (x * (gradient * facts[1]) for x in (of_images, of_texts))
        return of_images.to(images.dtype), of_texts.to(texts.dtype), None, None, None, None


# --- forward ------------------------------------------------------------------------------------


def _values(
    inputs: Inputs,
    sides: Sides[Side],
    found: Functions,
    reduction: Reduction,
    weigh: bool,
) -> tuple[Tensor, Tensor]:
    """Compute the value, and the facts that `row_kernels.combine` writes."""
    images, texts = sides.row, sides.column
    assert images is not None
    assert texts is not None
    pairs = [Wanted(a, b) for a, b in zip(images.wanted, texts.wanted, strict=True)]
    asked = [cast(Asked, one) for one in pairs if not isinstance(one.either, Hardest)]
    hardest = next((one for one in pairs if isinstance(one.either, Hardest)), Wanted(None, None))
    givens = [given_of(inputs, one) for one in asked]
    every = slice(0, inputs.n)

    def run(tile: Tile) -> tuple[TileResults, Tile]:
        return partial_results(
            tile, inputs, hardest, asked, givens, every, index=hardest.row is not None
        ), tile

    what = (inputs.rows.dtype, *(translated(one).term for one in asked))
    wanted = launching.INDEXED if hardest.row else launching.STATISTICS
    parts, tile = on_a_tile_that_fits(inputs.tiles(wanted), what, run)
    batch = images.scores.flatten()
    smallest = batch.amin() if found.asks_batch else batch
    of_queries = inputs.empty(2, inputs.n + inputs.m)
    values, counted = of_queries[0], of_queries[1]
    for side, start, tiles, k in (
        (images, 0, ceil(inputs.m, tile.width), 0),
        (texts, inputs.n, ceil(inputs.n, tile.height), 1),
    ):
        _finish(
            *(side, values[start:], counted[start:], smallest, batch, tiles),
            *(inputs.n if k else inputs.m, found, weigh, parts, k),
        )
    return reduce(reduction, of_queries, values, inputs.n, inputs.m, weigh=False, fold=False)


def _finish(
    side: Side,
    values: Tensor,
    counted: Tensor,
    smallest: Tensor,
    batch: Tensor,
    tiles: int,
    num_candidates: int,
    found: Functions,
    weigh: bool,
    parts: TileResults,
    k: int,
) -> None:
    """Compute value and slopes of the queries of side k of the parts: 0 for images, 1 for texts."""
    from triton import next_power_of_2

    from gradspace.execution.triton import query_kernels

    sums: list[Tensor] = []
    for number in range(2):
        one = number < len(side.results)
        sums += [
            parts.sums[number][k] if one else batch,
            side.results[number] if one else batch,
            side.slopes[number] if one else batch,
        ]
    num_queries = len(side.scores)
    query_kernels.finish_queries[(ceil(num_queries, QUERIES),)](
        *(side.scores, side.index, smallest, batch),
        *(len(batch), values, counted, side.slot_slopes),
        *(parts.best[k], parts.at[k], side.best_slopes, side.hardest),
        *sums,
        *(num_queries, num_candidates, tiles),
        QUERY=found.query,
        WEIGH=weigh,
        COUNT=side.count,
        QUERIES=QUERIES,
        SLOTS=next_power_of_2(side.count),
    )


# --- backward -----------------------------------------------------------------------------------


def _gradients(
    objective: Objective,
    inputs: Inputs,
    sides: Sides[Side],
    found: Functions,
    factors: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute the weights of one chunk of images at a time, and multiply them with both sides."""
    images, texts = sides.row, sides.column
    assert images is not None
    assert texts is not None
    upstream = _upstream(images, texts, found, factors)
    width = ceil(inputs.m, 64) * 64  # what the kernel writes must be aligned
    memory = 1 << 62 if _by_slot(found) else WEIGHT_BYTES
    chunks = inputs.chunks(128, width * inputs.rows.element_size(), memory)
    every = inputs.rows.new_empty(chunks[0].stop, width)
    rows, columns = inputs.rows[:, : inputs.width], inputs.columns[:, : inputs.width]
    of_images: list[Tensor] = []
    of_texts: Tensor | None = None
    for chunk in chunks:
        weights = every[: chunk.stop - chunk.start, : inputs.m]
        of_given = _of_sums(inputs, upstream, chunk, weights)
        for side, k in ((images, 0), (texts, 1)):
            slopes, factor = side.slot_slopes, factors[k : k + 1]
            if of_given and found.gives:
                slopes, factor = _with_given(objective, inputs, side, of_given[k], factor, k)
            _add_single(weights, chunk, side, side.index, slopes, factor, k == 1)
            if any(isinstance(found.wanted[number], Hardest) for number in found.sloped):
                best = side.hardest, side.best_slopes
                _add_single(weights, chunk, side, *best, factors[k : k + 1], k == 1)
        of_images.append(weights @ columns)
        if len(chunks) == 1:
            return of_images[0], weights.t() @ rows
        if of_texts is None:
            of_texts = columns.new_zeros(columns.shape, dtype=torch.float32)
        add_product(of_texts, weights.t(), rows[chunk])
    assert of_texts is not None
    return torch.cat(of_images), of_texts


def _upstream(images: Side, texts: Side, found: Functions, factors: Tensor) -> Upstream | None:
    """Upstream of the sum along which the values have a slope, if there is one."""
    sums = [k for k, one in enumerate(images.wanted) if not isinstance(one, Hardest)]
    for number, k in enumerate(sums):
        if k in found.sloped:
            row, column = (_to_be_given(side.wanted[k], found) for side in (images, texts))
            return Upstream(
                cast(Asked, Wanted(row, column)),
                Sides(images.results[number], texts.results[number]),
                Sides(images.slopes[number] * factors[0], texts.slopes[number] * factors[1]),
            )
    return None


def _to_be_given(one: Statistic, found: Functions) -> Statistic:
    """Mark a statistic's given numbers as requiring a gradient if a term passes one back."""
    if isinstance(one, Hardest) or not found.gives:
        return one
    return replace(one, given=one.given.detach().requires_grad_())


def _of_sums(
    inputs: Inputs, upstream: Upstream | None, chunk: slice, weights: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Write the weights that a sum gives; return the gradients of both sides' given numbers."""
    if upstream is None:
        weights.zero_()
        return None
    given = given_of(inputs, upstream.wanted)
    what = (inputs.rows.dtype, translated(upstream.wanted).term)
    return on_a_tile_that_fits(
        inputs.tiles(launching.WEIGHTS),
        what,
        lambda tile: weigh(tile, inputs, upstream, given, chunk, weights),
    )


def _with_given(
    objective: Objective, inputs: Inputs, side: Side, of_given: Tensor, factor: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Add what a term gives back to the slots' scores to their slopes; return these and a factor.

    If a sum has a gradient along what it is given, no other sum has a slope.
    """
    with torch.enable_grad():
        p = side.scores.detach().requires_grad_()
        num_candidates = inputs.n if k else inputs.m
        wanted = objective.statistics(positive_of(p, side.index, num_candidates, p.detach()[:, 0]))
        given = next(
            one.given for one in wanted if not isinstance(one, Hardest) and one.given.requires_grad
        )
    (back,) = torch.autograd.grad(given, p, of_given.t())
    return side.slot_slopes * factor + back, torch.ones_like(factor)


def _add_single(
    weights: Tensor,
    chunk: slice,
    side: Side,
    index: Tensor,
    slopes: Tensor,
    factor: Tensor,
    by_column: bool,
) -> None:
    """Add the weights of single candidates: the positives, or the hardest negatives."""
    from gradspace.execution.triton import query_kernels

    num = len(side.scores)
    query_kernels.add_to_weights[(ceil(num if by_column else len(weights), 128),)](
        *(weights, weights.stride(0), index, slopes, factor),
        *(chunk.start, chunk.stop, num),
        COUNT=slopes.shape[1],
        BY_COLUMN=by_column,
        QUERIES=128,
    )
