"""Which execution suits a batch: the whole matrix where it is small, kernels or tiles beyond."""

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
"""Scores up to which torch is fastest with the whole matrix; docs/benchmarks.md."""

Kernels = Literal["rows", "tiles"]
"""Kernels for one process without a memory: of whole rows of scores, or of tiles of them."""


@dataclass(frozen=True)
class Choice:
    """One of four: kernels, an executor, or neither: the matrix, by torch."""

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
) -> Choice:
    """`alone`: one process without a memory and further candidates; `terms`: mined for AOQ.

    `several_ids`: items have more than one, and Triton kernels compare one with one.
    """
    if execution == "triton" and several_ids:
        raise ValueError(
            'execution="triton" takes one id of each image and of each text, got several; leave it '
            'at "auto"'
        )
    if execution == "dense" and not alone:
        raise ValueError(
            'execution="dense" is for one process, without a memory or mined candidates; leave '
            'it at "auto"'
        )
    if execution == "triton" and not fused.is_available(images):
        raise ValueError(
            'execution="triton" needs a CUDA device, Triton, and embeddings of 16 or 32 bits, got '
            f'{images.dtype} on {images.device}; "auto" takes it where it can be used'
        )
    if execution in ("auto", "triton") and alone and not (terms or several_ids or tile):
        kernels = choose_kernels(objective, images, texts, chosen=execution == "triton")
        if kernels:
            return Choice(kernels=kernels)
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
) -> Choice:
    small = len(images) * len(texts) <= SMALL.get(images.device.type, 0)
    if execution == "dense" or (execution == "auto" and alone and small and tile is None):
        return Choice()
    if several_ids:
        return Choice(executor=Streamed(tile))
    if execution == "triton" or (execution == "auto" and fused.suits(images) and tile is None):
        return Choice(executor=fused.Fused())
    return Choice(executor=Streamed(tile))


def choose_kernels(
    objective: Objective, images: Tensor, texts: Tensor, *, chosen: bool = False
) -> Kernels | None:
    """None where there are none for these embeddings, or inside torch.compile and torch.func."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return None
    if whole_rows.suits(objective, images.shape[0], texts):
        return "rows"
    good: Callable[[Tensor], bool] = fused.is_available if chosen else fused.suits
    return "tiles" if good(images) and tiled.suits(objective, images, texts) else None
