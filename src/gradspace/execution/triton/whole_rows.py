"""Objectives of small batches on a GPU: value and weights in a handful of launches.

The score matrix is built. One kernel reads its rows and its columns, and finds the statistics and
value of every query and the weight of each candidate; another adds up the weights of both
directions. Backward is two products of the weights with the embeddings. Nothing synchronises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradspace.execution.triton import fused
from gradspace.execution.triton.launching import ceil
from gradspace.objectives.contract import Objective, Reduction
from gradspace.scores.tiles import as_computed

if TYPE_CHECKING:
    from gradspace.execution.triton.formulas import Functions

MOST = 4096
"""Largest number of candidates of a query, all of which are in registers at a time."""
AT_ONCE = 2048
"""Most scores that a program of several queries reads."""
READ_TWICE = 1 << 20
"""Number of scores up to which columns are read from the matrix of the rows; beyond, computing the
transpose by a second product is faster."""
TILE = 64
"""Side of the tiles in which weights are added up."""

Pairs = tuple[Tensor, Tensor]
"""Ids of the images and of the texts, on the device of the scores."""


def suits(objective: Objective, num_images: int, texts: Tensor) -> bool:
    """Whether a kernel can hold whole rows of the scores; `texts` may also be scores.t()."""
    if max(num_images, texts.shape[0]) > MOST or not fused.is_available(texts):
        return False
    return functions(objective) is not None


def of_embeddings(
    objective: Objective, reduction: Reduction, images: Tensor, texts: Tensor, pairs: Pairs
) -> tuple[Tensor, Tensor]:
    """Compute the reduced value, and the facts that `row_kernels.combine` writes.

    The value is NaN if any score is NaN or infinite.
    """
    apply: Any = _OfEmbeddings.apply
    value, facts = apply(
        images, texts, pairs, functions(objective), reduction, torch.is_grad_enabled()
    )
    return value, facts


def of_scores(objective: Objective, reduction: Reduction, scores: Tensor, pairs: Pairs) -> Tensor:
    """Compute the reduced value of scores[image, text]."""
    apply: Any = _OfScores.apply
    value: Tensor = apply(
        as_computed(scores), pairs, functions(objective), reduction, torch.is_grad_enabled()
    )
    return value


_known: dict[int, tuple[Objective, Functions | None]] = {}


def functions(objective: Objective) -> Functions | None:
    """Functions of an objective; None, with one warning, if it cannot be translated."""
    if id(objective) not in _known:
        from gradspace.execution.triton.formulas import functions_of

        found = fused.or_else(lambda: functions_of(objective), lambda: None)
        _known[id(objective)] = objective, found
    return _known[id(objective)][1]


def give_up(objective: Objective) -> None:
    """Forget the functions of an objective: they do not compile here."""
    _known[id(objective)] = objective, None


class _OfEmbeddings(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        texts: Tensor,
        pairs: Pairs,
        row: Functions,
        reduction: Reduction,
        weigh: bool,
    ) -> tuple[Tensor, Tensor]:
        by_image = _product(images, texts)
        by_text = by_image.t() if by_image.numel() <= READ_TWICE else _product(texts, images)
        value, facts, weights = _weigh(
            *(row, reduction, by_image, by_text, pairs, images.dtype if weigh else None),
            overwrite=by_image.numel() > READ_TWICE,
        )
        ctx.save_for_backward(images, texts, weights, facts)
        ctx.mark_non_differentiable(facts)
        ctx.set_materialize_grads(False)
        return value, facts

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        images, texts, weights, facts = ctx.saved_tensors
        of_images = of_texts = None
        if gradient is not None:
            scale: Tensor | None = gradient * facts[1]
            if weights.numel() <= READ_TWICE and _folds(weights.dtype):
                weights, scale = weights * gradient, None
            if ctx.needs_input_grad[0]:
                of_images = _of_side(weights, texts, scale)
            if ctx.needs_input_grad[1]:
                of_texts = _of_side(weights.t(), images, scale)
        return of_images, of_texts, None, None, None, None


class _OfScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        pairs: Pairs,
        row: Functions,
        reduction: Reduction,
        weigh: bool,
    ) -> Tensor:
        scores = scores.contiguous()
        wanted = scores.dtype if weigh else None
        value, _, weights = _weigh(row, reduction, scores, scores.t(), pairs, wanted)
        ctx.save_for_backward(weights)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (weights,) = ctx.saved_tensors
        return weights * gradient, None, None, None, None


def _folds(dtype: torch.dtype) -> bool:
    """Whether this type can hold the small weights of a mean over many queries."""
    return dtype != torch.float16


def _weigh(
    row: Functions,
    reduction: Reduction,
    by_image: Tensor,
    by_text: Tensor,
    pairs: Pairs,
    wanted: torch.dtype | None,
    *,
    overwrite: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the value, the facts that `combine` writes, and the weights in the wanted type.

    With `overwrite`, by_text is a matrix of its own, and the weights of both directions overwrite
    the scores before they are added up.
    """
    from triton import next_power_of_2

    from gradspace.execution.triton import row_kernels

    n, m = by_image.shape
    weigh = wanted is not None
    image_ids, text_ids = pairs
    images, texts = max(next_power_of_2(n), 16), max(next_power_of_2(m), 16)
    of_images, of_texts = max(AT_ONCE // texts, 1), max(AT_ONCE // images, 1)
    matrices = row.asks_batch + 2 * (weigh and not overwrite)
    work = by_image.new_empty(4 * (n + m) + matrices * n * m)
    weights = (by_image, by_text) if overwrite else (work[-2 * n * m :], work[-n * m :])
    if row.asks_batch:
        row_kernels.pack_positives[(ceil(n, of_images),)](
            *(by_image, image_ids, text_ids, work, n, m),
            QUERIES=of_images,
            CANDIDATES=texts,
        )
    row_kernels.weigh_rows[(ceil(n, of_images) + ceil(m, of_texts),)](
        *(by_image, by_text, by_text.stride(1), by_text.stride(0), image_ids, text_ids),
        *(work, *weights, n, m),
        ROW=row.row,
        WEIGH=weigh,
        OF_IMAGES=of_images,
        OF_TEXTS=of_texts,
        IMAGES=images,
        TEXTS=texts,
        num_warps=8 if max(images, texts) > AT_ONCE else 4,
    )
    both = torch.empty(n, m, dtype=wanted, device=by_image.device) if weigh else work
    value, facts = work.new_empty(()), work.new_empty(4)
    row_kernels.combine[(ceil(n, TILE), ceil(m, TILE)) if weigh else (1, 1)](
        *(work, *weights, value, facts, both, n, m),
        MEAN=reduction == "mean",
        FOLD=_folds(both.dtype),
        WEIGH=weigh,
        SIZE=TILE,
        AT_ONCE=1024,
    )
    return value, facts, both


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Compute scores in float32, which represents products of 16-bit numbers exactly."""
    if left.is_cuda and left.element_size() == 2:
        return torch.mm(left, right.t(), out_dtype=torch.float32)
    return as_computed(left) @ as_computed(right).t()


def _of_side(weights: Tensor, of: Tensor, scale: Tensor | None) -> Tensor:
    """Compute weights @ of, times the scale, before rounding."""
    if scale is None:
        return weights @ of
    if not weights.is_cuda:
        return (as_computed(weights) @ as_computed(of) * scale).to(of.dtype)
    product = torch.mm(weights, of, out_dtype=torch.float32)
    return torch.mul(product, scale, out=torch.empty_like(product, dtype=of.dtype))
