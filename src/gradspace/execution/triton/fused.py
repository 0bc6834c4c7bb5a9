"""Fused execution on CUDA: Triton kernels for the scores, library products for the gradients.

`kernels.py` holds the kernels, `terms.py` translates the objectives' formulas for them, and
`forward.py` and `backward.py` run them over the tiles of a block.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from subprocess import CalledProcessError
from typing import TypeVar

import torch
from torch import Tensor

from gradspace.execution.block import Block, Gradients, Result, Upstream, Wanted
from gradspace.execution.streamed import Streamed
from gradspace.execution.triton.backward import backward
from gradspace.execution.triton.forward import forward
from gradspace.execution.triton.launching import Inputs, ceil, is_full_float32

T = TypeVar("T")

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def is_available(values: Tensor) -> bool:
    """Whether the kernels can run on these values here."""
    return values.is_cuda and values.dtype in DTYPES and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def suits(values: Tensor) -> bool:
    """Whether the kernels are fastest here; full float32 products are faster in the library."""
    return is_available(values) and not is_full_float32(values)


@dataclass(frozen=True)
class Fused:
    """Executor in Triton kernels, replaced by the streamed one where these do not compile."""

    def forward(self, block: Block, wanted: Sequence[Wanted]) -> list[Result]:
        return or_else(
            lambda: forward(Inputs.of(block), wanted), lambda: Streamed().forward(block, wanted)
        )

    def backward(self, block: Block, upstream: Sequence[Upstream]) -> Gradients:
        return or_else(
            lambda: backward(Inputs.of(block), upstream),
            lambda: Streamed().backward(block, upstream),
        )


@cache
def _warn(reason: str) -> None:
    """Warn once per reason."""
    warnings.warn(
        f"the Triton kernels cannot be used here ({reason}); using the streamed execution instead",
        stacklevel=4,
    )


def or_else(fused: Callable[[], T], streamed: Callable[[], T]) -> T:
    """Run `fused`, or `streamed`, with one warning, if a kernel cannot be compiled."""
    from triton.errors import TritonError

    from gradspace.execution.triton.graphs import UnsupportedTermError

    try:
        return fused()
    except (UnsupportedTermError, TritonError, CalledProcessError, RuntimeError) as error:
        # Triton compiles a kernel's launcher with the machine's C compiler.
        if isinstance(error, RuntimeError) and "C compiler" not in str(error):
            raise
        _warn(str(error).strip().partition("\n")[0])
        return streamed()


# --- pairs --------------------------------------------------------------------------------------

PAIRS, WIDTH = 4, 256
"""Numbers of pairs and of values that a program reads at a time."""


def pair_scores(rows: Tensor, columns: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Kernel version of `pairs.pair_scores`, with one program per pair."""
    from gradspace.execution.triton import pair_kernels

    rows, columns = rows.contiguous(), columns.contiguous()
    scores = torch.empty(len(row), dtype=torch.float32, device=rows.device)
    if len(row):
        pair_kernels.scores_of_pairs[(len(row),)](
            rows, columns, row, column, scores, rows.shape[1], WIDTH=WIDTH, num_warps=1
        )
    return scores


def weighted_sums(weights: Tensor, of: Tensor, source: Tensor, target: Tensor, num: int) -> Tensor:
    """Kernel version of `pairs.weighted_sums`: pairs sorted by target, one program per target."""
    from gradspace.execution.triton import pair_kernels

    order = target.argsort(stable=True)
    ends = torch.searchsorted(target[order], torch.arange(num, device=of.device), right=True)
    of = of.contiguous()
    sums = torch.empty(num, of.shape[1], dtype=of.dtype, device=of.device)
    pair_kernels.sums_of_pairs[(num, ceil(of.shape[1], WIDTH))](
        weights.float()[order],
        of,
        source[order],
        ends,
        sums,
        of.shape[1],
        PAIRS=PAIRS,
        WIDTH=WIDTH,
        num_warps=1,
    )
    return sums
