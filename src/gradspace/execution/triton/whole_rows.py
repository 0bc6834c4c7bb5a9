"""Objectives of small batches on a GPU: value and weights in a handful of launches.

The score matrix is there once for each direction. One kernel reads every row of both, finds its
statistics, its value and the weight of every candidate, and backward is two products of the weights
with the embeddings. Nothing of it waits for the GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gradspace.execution.triton import fused
from gradspace.execution.triton.launching import ceil
from gradspace.objectives.contract import Objective, Reduction
from gradspace.scores.tiles import as_computed

MOST = 4096
"""Candidates of a query, which are all in registers at a time."""
AT_ONCE = 2048
"""Scores of a program of several queries."""


Pairs = tuple[Tensor, Tensor] | None
"""Ids of the images and of the texts, where the scores are; None by position."""


def suits(objective: Objective, num_images: int, texts: Tensor) -> bool:
    """Can a kernel read whole rows of the scores that texts, or scores.t(), have a row of?"""
    if max(num_images, len(texts)) > MOST or not fused.is_available(texts):
        return False
    return _is_translated(objective)


def of_embeddings(
    objective: Objective, reduction: Reduction, images: Tensor, texts: Tensor, pairs: Pairs
) -> tuple[Tensor, Tensor]:
    """The reduced value; and it with how many queries have a positive, at the end, as one tensor.

    The value is NaN where a score is NaN or infinite.
    """
    apply: Any = _OfEmbeddings.apply
    weigh = torch.is_grad_enabled()
    value, _, facts = apply(images, texts, pairs, objective, reduction, weigh)
    return value, facts


def of_scores(objective: Objective, reduction: Reduction, scores: Tensor, pairs: Pairs) -> Tensor:
    """The reduced value of scores[image, text]."""
    apply: Any = _OfScores.apply
    value, *_ = apply(as_computed(scores), pairs, objective, reduction, torch.is_grad_enabled())
    return value


def _is_translated(objective: Objective) -> bool:
    from gradspace.execution.triton.formulas import row_function

    return fused.or_else(lambda: bool(row_function(objective)), lambda: False)


class _OfEmbeddings(torch.autograd.Function):
    @staticmethod
    def forward(
        images: Tensor,
        texts: Tensor,
        pairs: Pairs,
        objective: Objective,
        reduction: Reduction,
        weigh: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        by_image, by_text = _product(images, texts), _product(texts, images)
        wanted = images.dtype if weigh else None
        return _weigh(objective, reduction, by_image, by_text, pairs, wanted)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2], *output[1:])
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        images, texts, weights, facts = ctx.saved_tensors
        of_images = of_texts = None
        if gradient is not None:
            scale = gradient * facts[1]
            if ctx.needs_input_grad[0]:
                of_images = _scaled(weights, texts, scale)
            if ctx.needs_input_grad[1]:
                of_texts = _scaled(weights.t(), images, scale)
        return of_images, of_texts, None, None, None, None


class _OfScores(torch.autograd.Function):
    @staticmethod
    def forward(
        scores: Tensor, pairs: Pairs, objective: Objective, reduction: Reduction, weigh: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        by_image, by_text = scores.contiguous(), scores.t().contiguous()
        wanted = scores.dtype if weigh else None
        return _weigh(objective, reduction, by_image, by_text, pairs, wanted)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _OfEmbeddings.setup_context(ctx, (), output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        weights, facts = ctx.saved_tensors
        of_scores = None if gradient is None else weights * (gradient * facts[1])
        return of_scores, None, None, None, None


def _weigh(
    objective: Objective,
    reduction: Reduction,
    by_image: Tensor,
    by_text: Tensor,
    pairs: Pairs,
    wanted: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The value, the weights in the wanted type, and what `finish` says of them."""
    from triton import next_power_of_2

    from gradspace.execution.triton import row_kernels
    from gradspace.execution.triton.formulas import row_function

    (n, m), row = by_image.shape, row_function(objective)
    by_position, weigh = pairs is None, wanted is not None
    image_ids, text_ids = pairs or (by_image, by_text)
    images, texts = (max(next_power_of_2(count), 16) for count in (n, m))
    of_images, of_texts = max(AT_ONCE // texts, 1), max(AT_ONCE // images, 1)
    of_queries = by_image.new_empty(2, n + m)
    values, counted = of_queries[0], of_queries[1]
    weights = by_image.new_empty(2 if weigh else 0, n * m)
    image_weights, text_weights = (weights[0], weights[1]) if weigh else (weights, weights)
    packed, counts, smallest = by_image, by_image, by_image
    if row.asks_batch:
        packed, smallest = torch.empty_like(by_image), by_image.new_empty(n)
        counts = smallest.to(torch.int32)
        row_kernels.pack_positives[(ceil(n, of_images),)](
            *(by_image, image_ids, text_ids, packed, counts, smallest, n, m),
            BY_POSITION=by_position,
            QUERIES=of_images,
            CANDIDATES=texts,
        )
    warps = 8 if max(images, texts) > AT_ONCE else 4
    row_kernels.weigh_rows[(ceil(n, of_images) + ceil(m, of_texts),)](
        *(by_image, by_text, image_ids, text_ids, values, counted, image_weights, text_weights),
        *(packed, counts, smallest, n, m),
        ROW=row.function,
        WEIGH=weigh,
        BY_POSITION=by_position,
        OF_IMAGES=of_images,
        OF_TEXTS=of_texts,
        IMAGES=images,
        TEXTS=texts,
        num_warps=warps,
    )
    facts = by_image.new_empty(4)
    row_kernels.finish[(1,)](values, counted, facts, n, m, MEAN=reduction == "mean", SIZE=1024)
    if wanted is None:
        return facts[0], weights, facts
    both = torch.empty(n, m, dtype=wanted, device=by_image.device)
    row_kernels.combine[(ceil(n, 64), ceil(m, 64))](
        image_weights, text_weights, facts[2:], both, n, m, SIZE=64
    )
    return facts[0], both, facts


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Scores in float32, in which products of 16 bits are exact."""
    if left.is_cuda and left.element_size() == 2:
        return torch.mm(left, right.t(), out_dtype=torch.float32)
    return as_computed(left) @ as_computed(right).t()


def _scaled(weights: Tensor, of: Tensor, scale: Tensor) -> Tensor:
    """(weights @ of) * scale, rounded once."""
    if weights.is_cuda and weights.element_size() == 2:
        product = torch.mm(weights, of, out_dtype=torch.float32)
    else:
        product = as_computed(weights) @ as_computed(of)
    return torch.mul(product, scale, out=torch.empty_like(product, dtype=of.dtype))
