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
from gradspace.execution.triton.asked import Asked, Given, given_of, translated, with_reference
from gradspace.execution.triton.backward import add_product, weigh
from gradspace.execution.triton.forward import TileResults, partial_results
from gradspace.execution.triton.launching import Inputs, Tile, ceil, on_a_tile_that_fits
from gradspace.execution.triton.sides import Side, positive_of, sides_of
from gradspace.execution.triton.slots import Slots
from gradspace.execution.triton.whole_rows import functions
from gradspace.objectives.contract import Objective, Reduction
from gradspace.objectives.statistics import Hardest, Statistic

if TYPE_CHECKING:
    from gradspace.execution.triton.formulas import Functions

MOST = 1 << 29
"""Number of scores up to which this is faster than block statistics plus lists of pairs."""
MOST_BY_SLOT = 1 << 28
"""Limit for terms that are given the positives' scores: all weights are in memory at once."""
WEIGHT_BYTES = 128 << 20
"""Bytes that the weights of a chunk of images may take."""
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
        finished = torch.empty(1, dtype=torch.int32, device=images.device)
        sides = sides_of(objective, inputs, slots, finished)
        value, facts = _values(inputs, sides, finished, found, reduction, weigh)
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
    finished: Tensor,
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
    givens = [with_reference(inputs, one, given_of(inputs, one)) for one in asked]
    every = slice(0, inputs.n)

    def run(tile: Tile) -> tuple[TileResults, Tile]:
        return partial_results(
            tile, inputs, hardest, asked, givens, every, index=hardest.row is not None
        ), tile

    what = (inputs.rows.dtype, *(translated(one).term for one in asked))
    wanted = launching.INDEXED if hardest.row else launching.STATISTICS
    parts, tile = on_a_tile_that_fits(inputs.tiles(wanted), what, run)
    return _finish(inputs, images, texts, parts, tile, finished, found, reduction, weigh)


def _finish(
    inputs: Inputs,
    images: Side,
    texts: Side,
    parts: TileResults,
    tile: Tile,
    finished: Tensor,
    found: Functions,
    reduction: Reduction,
    weigh: bool,
) -> tuple[Tensor, Tensor]:
    """Compute the slopes of all queries from the results of the tiles; return value and facts."""
    from triton import next_power_of_2

    from gradspace.execution.triton import query_kernels

    n, m = inputs.n, inputs.m
    batch = images.scores.flatten()
    value, facts = inputs.empty(), inputs.empty(4)
    query_kernels.finish[(ceil(n, QUERIES) + ceil(m, QUERIES),)](
        *_arguments(images, parts, 0),
        *_arguments(texts, parts, 1),
        *(inputs.empty(2, n + m), finished, value, facts),
        *(batch.amin() if found.asks_batch else batch, batch, len(batch), n, m),
        *(ceil(m, tile.width), ceil(n, tile.height)),
        QUERY=found.query,
        WEIGH=weigh,
        COUNT=images.count,
        COUNT_T=texts.count,
        QUERIES=QUERIES,
        SLOTS=next_power_of_2(images.count),
        SLOTS_T=next_power_of_2(texts.count),
        MEAN=reduction == "mean",
        AT_ONCE=1024,
    )
    return value, facts


def _arguments(side: Side, parts: TileResults, k: int) -> list[Tensor]:
    """Tensors that finish side k of the parts: 0 for images, 1 for texts."""
    sums: list[Tensor] = []
    for number in range(2):
        if number < len(side.results):
            sums += [parts.sums[number][k], side.results[number], side.slopes[number]]
        else:
            sums += [side.scores] * 3
    best = [parts.best[k], parts.at[k], side.best_slopes, side.hardest]
    return [side.scores, side.index, side.slot_slopes, *best, *sums]


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
    upstream = _upstream(images, texts, found)
    given = given_of(inputs, upstream.wanted) if upstream else None
    width = ceil(inputs.m, 64) * 64  # what the kernel writes must be aligned
    memory = 1 << 62 if _by_slot(found) else WEIGHT_BYTES
    chunks = inputs.chunks(128, width * inputs.rows.element_size(), memory)
    every = inputs.rows.new_empty(chunks[0].stop, width)
    rows, columns = inputs.rows[:, : inputs.width], inputs.columns[:, : inputs.width]
    mined = any(isinstance(found.wanted[number], Hardest) for number in found.sloped)
    one = bool(upstream) and images.count == texts.count == 1 and not (mined or found.gives)
    of_images = rows.new_empty(rows.shape)
    of_texts: Tensor | None = None
    for chunk in chunks:
        weights = every[: chunk.stop - chunk.start, : inputs.m]
        slopes, slot_factors = (images.slot_slopes, texts.slot_slopes), factors
        of_given = _of_sums(
            inputs, upstream, given, factors, chunk, weights, slopes if one else None
        )
        if of_given:
            slopes, slot_factors = _with_given(objective, inputs, sides, of_given, factors)
        if not one:
            _add_single(weights, chunk, images, texts, slopes, slot_factors, factors, mined)
        torch.mm(weights, columns, out=of_images[chunk])
        if len(chunks) == 1:
            return of_images, weights.t() @ rows
        if of_texts is None:
            of_texts = columns.new_zeros(columns.shape, dtype=torch.float32)
        add_product(of_texts, weights.t(), rows[chunk])
    assert of_texts is not None
    return of_images, of_texts


def _upstream(images: Side, texts: Side, found: Functions) -> Upstream | None:
    """Upstream of the sum along which the values have a slope, if there is one."""
    sums = [k for k, one in enumerate(images.wanted) if not isinstance(one, Hardest)]
    for number, k in enumerate(sums):
        if k in found.sloped:
            row, column = (_to_be_given(side.wanted[k], found) for side in (images, texts))
            return Upstream(
                cast(Asked, Wanted(row, column)),
                Sides(images.results[number], texts.results[number]),
                Sides(images.slopes[number], texts.slopes[number]),
            )
    return None


def _to_be_given(one: Statistic, found: Functions) -> Statistic:
    """Mark a statistic's given numbers as requiring a gradient if a term passes one back."""
    if isinstance(one, Hardest) or not found.gives:
        return one
    return replace(one, given=one.given.detach().requires_grad_())


def _of_sums(
    inputs: Inputs,
    upstream: Upstream | None,
    given: Given | None,
    factors: Tensor,
    chunk: slice,
    weights: Tensor,
    single: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor] | None:
    """Write the weights that a sum gives; return the gradients of both sides' given numbers."""
    if upstream is None or given is None:
        weights.zero_()
        return None
    what = (inputs.rows.dtype, translated(upstream.wanted).term)
    return on_a_tile_that_fits(
        inputs.tiles(launching.WEIGHTS),
        what,
        lambda tile: weigh(tile, inputs, upstream, factors, given, chunk, weights, single),
    )


def _with_given(
    objective: Objective,
    inputs: Inputs,
    sides: Sides[Side],
    of_given: tuple[Tensor, Tensor],
    factors: Tensor,
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Add what a term gives back to the slots' scores to their slopes; return these and factors.

    If a sum has a gradient along what it is given, no other sum has a slope.
    """
    both = ((sides.row, inputs.m, 0), (sides.column, inputs.n, 1))
    slopes = []
    for side, num_candidates, k in both:
        assert side is not None
        with torch.enable_grad():
            p = side.scores.detach().requires_grad_()
            positive = positive_of(p, side.index, num_candidates, p.detach()[:, 0])
            given = next(
                one.given
                for one in objective.statistics(positive)
                if not isinstance(one, Hardest) and one.given.requires_grad
            )
        (back,) = torch.autograd.grad(given, p, of_given[k].t())
        slopes.append(side.slot_slopes * factors[k] + back)
    return (slopes[0], slopes[1]), torch.ones_like(factors)


def _add_single(
    weights: Tensor,
    chunk: slice,
    images: Side,
    texts: Side,
    slopes: tuple[Tensor, Tensor],
    slot_factors: Tensor,
    factors: Tensor,
    mined: bool,
) -> None:
    """Add the weights of single candidates: the positives and, if mined, the hardest negatives."""
    from gradspace.execution.triton import query_kernels

    m = len(texts.scores)
    query_kernels.add_single[(ceil(len(weights), 128) + mined * ceil(m, 128),)](
        *(weights, weights.stride(0), chunk.start, chunk.stop, m, factors),
        *(images.index, slopes[0], texts.index, slopes[1], slot_factors),
        *(images.hardest, images.best_slopes, texts.hardest, texts.best_slopes),
        COUNT=images.count,
        COUNT_T=texts.count,
        MINED=mined,
        QUERIES=128,
    )
