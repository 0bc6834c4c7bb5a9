"""Which execution suits a batch: the whole matrix where it is small, tiles or kernels beyond."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from gradspace.execution import fused
from gradspace.execution.block import Executor
from gradspace.execution.streamed import Streamed

Execution = Literal["auto", "dense", "streamed", "triton"]

SMALL = {"cpu": 1 << 20, "cuda": 1 << 25}
"""Scores up to which the whole matrix is the fastest; docs/benchmarks.md."""


def choose_executor(
    execution: Execution, tile: int | None, images: Tensor, texts: Tensor
) -> Executor | None:
    """None for the dense execution."""
    if execution == "auto":
        if len(images) * len(texts) <= SMALL.get(images.device.type, 0) and tile is None:
            return None
        execution = "triton" if fused.suits(images) and tile is None else "streamed"
    if execution == "dense":
        return None
    if execution == "streamed":
        return Streamed(tile)
    if not fused.is_available(images):
        raise ValueError(
            'execution="triton" needs a CUDA device, Triton, and embeddings of 16 or 32 bits, got '
            f'{images.dtype} on {images.device}; "auto" takes it where it can be used'
        )
    return fused.Fused()
