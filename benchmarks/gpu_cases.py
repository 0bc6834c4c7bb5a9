"""Time and memory on a GPU: forward + backward in bfloat16, next to one bare matrix product.

A case's `suite` is the table it belongs to, its `who` the execution of `RetrievalLoss`. Mining has
cases of its own, in `gpu_mining.py`, training steps too, in `gpu_steps.py`, and pairs are scored as
in `pairs.py`, in float32.
"""

from __future__ import annotations

import gc
import statistics
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor

import gradspace as gs
from benchmarks import gpu_mining, gpu_steps, pairs
from benchmarks.case import Batch, Case, Measurement, make_batch
from benchmarks.losses import COSINE
from gradspace.execution.choice import Execution
from gradspace.scores.tiles import blocks

Step = Callable[[], tuple[Tensor, ...]]
"""What is timed. It returns the loss, or another number that all who do the same must find, and the
gradients; the bare product and a training step return nothing."""

DEVICE = "cuda"
BY_POSITION = "triton, by position"
OVER_ALL_NEGATIVES = ("nt-xent", "triplet", "siglip", "circle", "multi-similarity", "smooth-ap")
"""Backward takes the product again and two more; the others' gradient is sparse."""
COMPARED = ("triplet-hard", "nt-xent")
GOAL = tuple(info.name for info in gs.list_objectives() if "/" in info.name)
REPEATS = {"small": 20, "largest": 1, gpu_steps.SUITE: 20}
USUAL_REPEATS = 3
SCORES_AT_ONCE = 2**34
"""Of the bare product; a larger one is taken in parts, each into the same memory."""


def cases(quick: bool) -> list[Case]:
    """In the order they are measured; a product comes just before what is compared with it."""
    n, width, small_width = (512, 64, 32) if quick else (65_536, 1024, 512)
    small = (128, 256) if quick else (128, 256, 512, 1024, 2048, 4096, 8192)
    scaling = (n // 64, n // 16, n // 4)
    return [
        *_rows("large", n, 1, width, _large()),
        *_rows("larger", 2 * n, 1, width, _larger()),
        *_rows("captions", n // 4, 5, width, _triton("smooth-ap", "triplet")),
        *(case for size in small for case in _small(size, small_width)),
        *(
            case
            for size in scaling
            for case in _rows("scaling", size, 1, width, _triton("triplet-hard"))
        ),
        *_rows("largest", 16 * n, 1, small_width, _triton("triplet-hard")),
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


def _small(size: int, width: int) -> list[Case]:
    rows = [(who, what) for what in COMPARED for who in ("dense", "auto")]
    return [Case("small", who, what, size, 1, width) for who, what in rows]


def _rows(
    suite: str, images: int, captions: int, width: int, rows: Iterable[tuple[str, str]]
) -> list[Case]:
    return [
        Case(suite, who, what, images, captions, width)
        for who, what in [("product", "product"), *rows]
    ]


# --- one case -----------------------------------------------------------------------------------


def measure(case: Case) -> Measurement:
    """Seconds and extra memory. Whatever goes wrong is the answer, and stops no other case."""
    gc.collect()
    torch.cuda.empty_cache()
    try:
        with no_fallback():
            return _measure(prepare(case), REPEATS.get(case.suite, USUAL_REPEATS))
    except Exception as error:
        return Measurement(failure=reason(error))


@contextmanager
def no_fallback() -> Iterator[None]:
    """Kernels that do not compile are an error, instead of a warning and the streamed execution."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the Triton kernels cannot be used")
        yield


def reason(error: Exception) -> str:
    """In a few words that a table has room for."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    first_line = str(error).strip().partition("\n")[0].replace("|", "/")
    return f"{type(error).__name__}: {first_line}"[:120]


def prepare(case: Case) -> Step:
    if case.suite == pairs.SUITE:
        return pairs.forward_and_backward(case, DEVICE)
    if case.suite == gpu_steps.SUITE:
        return gpu_steps.prepare(case, DEVICE)
    b = _batch(case)
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


def _batch(case: Case) -> Batch:
    b = make_batch(case, COSINE, DEVICE)
    images, texts = (x.bfloat16().requires_grad_() for x in (b.images, b.texts))
    return Batch(images, texts, b.image_ids, b.text_ids)


def _product(b: Batch) -> Step:
    images, texts = b.images.detach(), b.texts.detach()
    height = min(len(images), SCORES_AT_ONCE // len(texts))
    scores = images.new_empty(height, len(texts))

    def product() -> tuple[Tensor, ...]:
        for rows in blocks(len(images), height):
            torch.mm(images[rows], texts.t(), out=scores[: rows.stop - rows.start])
        return ()

    return product


def _measure(step: Step, repeats: int) -> Measurement:
    """A first run compiles the kernels; time and memory are those of the runs after it."""
    first = step()
    numbers = {"loss": first[0].item()} if first else {}
    del first
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    times = [_timed(step) for _ in range(repeats)]
    megabytes = (torch.cuda.max_memory_allocated() - before) / 1e6
    return Measurement(statistics.median(times), min(times), megabytes, numbers=numbers)


def _timed(step: Step) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    step()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000
