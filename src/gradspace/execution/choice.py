"""Which execution suits a batch: the whole matrix where it is small, tiles or kernels beyond."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from gradspace.execution.block import Executor
from gradspace.execution.streamed import Streamed
from gradspace.execution.triton import fused

Execution = Literal["auto", "dense", "streamed", "triton"]

SMALL = {"cpu": 1 << 20, "cuda": 1 << 25}
"""Scores up to which the whole matrix is the fastest; docs/benchmarks.md."""


def choose_executor(
    execution: Execution, tile: int | None, images: Tensor, texts: Tensor, *, alone: bool
) -> Executor | None:
    """None for the dense execution, which is for one process without a memory: `alone`."""
    if execution == "auto":
        small = len(images) * len(texts) <= SMALL.get(images.device.type, 0)
        if alone and small and tile is None:
            return None
        execution = "triton" if fused.suits(images) and tile is None else "streamed"
    if execution == "dense":
        if not alone:
            raise ValueError(
                'execution="dense" is for one process, without a memory or mined candidates; leave '
                'it at "auto"'
            )
        return None
    if execution == "streamed":
        return Streamed(tile)
    if not fused.is_available(images):
        raise ValueError(
            'execution="triton" needs a CUDA device, Triton, and embeddings of 16 or 32 bits, got '
            f'{images.dtype} on {images.device}; "auto" takes it where it can be used'
        )
    return fused.Fused()
