"""Time and memory on a GPU: forward + backward in bfloat16, next to one bare matrix product.

A case's `suite` is the table it belongs to, its `who` the execution of `RetrievalLoss`. Other
suites have their own modules: common batch sizes (`gpu_batches.py`), launches (`gpu_launches.py`),
training steps (`gpu_training.py`, with mined negatives `gpu_steps.py`), mining (`gpu_mining.py`),
and pairs, which are scored as in `pairs.py`, in float32.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor

import gradspace as gs
from benchmarks import gpu_batches, gpu_launches, gpu_mining, gpu_steps, gpu_training, pairs
from benchmarks.case import Batch, Case, Measurement, bfloat16_batch
from benchmarks.gpu_timing import FEWEST, Step, measure_step
from benchmarks.losses import COSINE
from gradspace.execution.choice import Execution
from gradspace.scores.tiles import blocks

DEVICE = "cuda"
BY_POSITION = "triton, by position"
OVER_ALL_NEGATIVES = ("nt-xent", "triplet", "siglip", "circle", "multi-similarity", "smooth-ap")
"""Objectives whose backward recomputes the product and takes two more; others' are sparse."""
COMPARED = ("triplet-hard", "nt-xent")
GOAL = tuple(info.name for info in gs.list_objectives() if "/" in info.name)
REPEATS = {"largest": 1, gpu_steps.SUITE: 20}
MEASURED_BY: dict[str, Callable[[Case, str], Measurement]] = {
    gpu_batches.SUITE: gpu_batches.measure,
    gpu_launches.SUITE: gpu_launches.measure,
    gpu_training.SUITE: gpu_training.measure,
}
"""Suites with their own way of measuring."""
MUCH_MEMORY = 4096
"""Number of images from which the memory of earlier cases is released first, which takes a while.
"""
SCORES_AT_ONCE = 2**34
"""Largest bare product; larger ones are computed in parts, each into the same memory."""


def cases(quick: bool) -> list[Case]:
    """List cases in the order of measurement; a product precedes what is compared with it."""
    n, width, narrow = (512, 64, 32) if quick else (65_536, 1024, 512)
    scaling = (n // 64, n // 16, n // 4)
    return [
        *gpu_batches.cases(quick),
        *gpu_launches.cases(quick),
        *gpu_training.cases(quick),
        *_rows("large", n, 1, width, _large()),
        *_rows("larger", 2 * n, 1, width, _larger()),
        *_rows("captions", n // 4, 5, width, _triton("smooth-ap", "triplet")),
        *(
            case
            for size in scaling
            for case in _rows("scaling", size, 1, width, _triton("triplet-hard"))
        ),
        *_rows("largest", 16 * n, 1, narrow, _triton("triplet-hard")),
        *gpu_mining.cases(quick),
        *pairs.cases(quick),
        *gpu_steps.cases(quick),
    ]


def _large() -> Iterable[tuple[str, str]]:
    yield from _triton("triplet-hard", *GOAL)
    yield from _triton("nt-xent", "triplet", "siglip", "circle", "multi-similarity")
    yield from ((BY_POSITION, what) for what in ("triplet-hard", "circle/sigmoid-ms"))
    yield from ((who, what) for who in ("streamed", "dense") for what in COMPARED)


def _larger() -> Iterable[tuple[str, str]]:
    return [*_triton("triplet-hard", "circle/sigmoid-ms", "nt-xent"), ("dense", "triplet-hard")]


def _triton(*objectives: str) -> list[tuple[str, str]]:
    return [("triton", what) for what in objectives]


def _rows(
    suite: str, images: int, captions: int, width: int, rows: Iterable[tuple[str, str]]
) -> list[Case]:
    return [
        Case(suite, who, what, images, captions, width)
        for who, what in [("product", "product"), *rows]
    ]


# --- one case -----------------------------------------------------------------------------------


def measure(case: Case) -> Measurement:
    """Measure seconds and extra memory; an error is recorded, and stops no other case."""
    if case.images >= MUCH_MEMORY:
        gc.collect()
        torch.cuda.empty_cache()  # does nothing without a GPU
    try:
        with no_fallback():
            if case.suite in MEASURED_BY:
                return MEASURED_BY[case.suite](case, DEVICE)
            return measure_step(prepare(case), DEVICE, repeats=REPEATS.get(case.suite, FEWEST))
    except Exception as error:
        return Measurement(failure=reason(error))


@contextmanager
def no_fallback() -> Iterator[None]:
    """Make kernels that do not compile an error, not a warning with a fallback to streaming."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the Triton kernels cannot be used")
        yield


def reason(error: Exception) -> str:
    """Describe an error in a few words that fit into a table."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    first_line = str(error).strip().partition("\n")[0].replace("|", "/")
    return f"{type(error).__name__}: {first_line}"[:120]


def prepare(case: Case) -> Step:
    if case.suite == pairs.SUITE:
        return pairs.forward_and_backward(case, DEVICE)
    if case.suite == gpu_steps.SUITE:
        return gpu_steps.prepare(case, DEVICE)
    b = bfloat16_batch(case, COSINE, DEVICE)
    if case.suite == gpu_mining.SUITE:
        return gpu_mining.prepare(case, b)
    if case.who == "product":
        return _product(b)
    execution, _, by_position = case.who.partition(", ")
    loss = gs.RetrievalLoss(case.what, execution=cast(Execution, execution))
    ids = () if by_position else (b.image_ids, b.text_ids)

    def forward_and_backward() -> tuple[Tensor, ...]:
        value = loss(b.images, b.texts, *ids)
        return value.detach(), *torch.autograd.grad(value, (b.images, b.texts))

    return forward_and_backward


def _product(b: Batch) -> Step:
    images, texts = b.images.detach(), b.texts.detach()
    height = min(len(images), SCORES_AT_ONCE // len(texts))
    scores = images.new_empty(height, len(texts))

    def product() -> tuple[Tensor, ...]:
        for rows in blocks(len(images), height):
            torch.mm(images[rows], texts.t(), out=scores[: rows.stop - rows.start])
        return ()

    return product
