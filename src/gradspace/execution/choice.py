"""Choose the execution of a batch: the whole matrix if it is small, else kernels or tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gradspace.execution.block import Executor
from gradspace.execution.streamed import Streamed
from gradspace.execution.triton import fused, tiled, whole_rows

if TYPE_CHECKING:
    from gradspace.objectives.contract import Objective

Execution = Literal["auto", "dense", "streamed", "triton"]

SMALL = {"cpu": 1 << 20, "cuda": 1 << 25}
"""Scores up to which torch on the whole matrix is fastest: docs/reference/benchmarks.md."""

Kernels = Literal["rows", "tiles"]
"""Kernels for a single process without a memory: over whole rows of scores, or over tiles."""


@dataclass(frozen=True)
class Route:
    """Execution of a batch: by kernels, by an executor, or (neither) by torch on the matrix."""

    kernels: Kernels | None = None
    executor: Executor | None = None


def choose(
    execution: Execution,
    tile: int | None,
    objective: Objective,
    images: Tensor,
    texts: Tensor,
    *,
    alone: bool,
    terms: bool,
    several_ids: bool = False,
) -> Route:
    """Choose the route of a batch, or reject an execution that cannot run it.

    `alone` means one process without a memory or further candidates; `terms` means that the
    objective gets the scores of mined pairs (AOQ); `several_ids` means that items have more than
    one id, which Triton kernels cannot compare.
    """
    if execution == "triton" and several_ids:
        raise ValueError(
            'execution="triton" takes one id of each image and of each text, got several; leave it '
            'at "auto"'
        )
    if execution == "dense" and not alone:
        raise ValueError(
            'execution="dense" works only in a single process, without a memory or mined '
            'candidates; leave it at "auto"'
        )
    if execution == "triton" and not fused.is_available(images):
        raise ValueError(
            'execution="triton" needs a CUDA device, Triton, and embeddings of 16 or 32 bits, got '
            f'{images.dtype} on {images.device}; use "auto", which picks Triton where it can run'
        )
    if execution in ("auto", "triton") and alone and not (terms or several_ids or tile):
        kernels = choose_kernels(objective, images, texts, chosen=execution == "triton")
        if kernels:
            return Route(kernels=kernels)
    return choose_without_kernels(
        execution, images, texts, tile, alone=alone, several_ids=several_ids
    )


def choose_without_kernels(
    execution: Execution,
    images: Tensor,
    texts: Tensor,
    tile: int | None,
    *,
    alone: bool = True,
    several_ids: bool = False,
) -> Route:
    small = len(images) * len(texts) <= SMALL.get(images.device.type, 0)
    if execution == "dense" or (execution == "auto" and alone and small and tile is None):
        return Route()
    if several_ids:
        return Route(executor=Streamed(tile))
    if execution == "triton" or (execution == "auto" and fused.suits(images) and tile is None):
        return Route(executor=fused.Fused())
    return Route(executor=Streamed(tile))


def choose_kernels(
    objective: Objective, images: Tensor, texts: Tensor, *, chosen: bool = False
) -> Kernels | None:
    """Choose the kernels for these embeddings; None if none suit, or in torch.compile or func."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return None
    if whole_rows.suits(objective, images.shape[0], texts):
        return "rows"
    good: Callable[[Tensor], bool] = fused.is_available if chosen else fused.suits
    return "tiles" if good(images) and tiled.suits(objective, images, texts) else None
