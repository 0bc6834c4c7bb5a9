"""GPU suite: all common batch sizes, ours beside the alternatives.

Forward + backward to both embeddings in bfloat16, one text per image. The alternatives are plain
torch (`plain.py`), torch.compile of it, and pytorch-metric-learning where it has the loss; ours is
`RetrievalLoss` as users call it, choosing its own execution. The tables are in
`gpu_batches_page.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

import gradspace as gs
from benchmarks.case import Batch, Case, Measurement, bfloat16_batch
from benchmarks.gpu_compiling import compiled
from benchmarks.gpu_timing import Step, measure_step, seconds_per_call
from benchmarks.losses import COSINE
from benchmarks.peers import pml_loss
from benchmarks.plain import PLAIN

SUITE = "batches"
WHO = ("plain", "compiled", "pml", "ours")
SIZES = (128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
WIDTH = 512
IN_PML = ("nt-xent", "triplet-hard", "triplet", "circle", "multi-similarity")

BACK_TO_BACK = 4096
"""Batch size from which calls are timed one by one; smaller ones are timed `CALLS` at a time."""
CALLS, REPEATS = 50, 30
ENOUGH, ENOUGH_ALONE = 0.25, 2.0
"""Seconds after which no further repeats are needed, of `CALLS` calls and of a single one."""
SLOW = 0.02
"""Seconds from which a call is timed alone whatever the batch."""
TOO_SLOW = 2.0
"""Seconds from which a call is not repeated."""

SAME, SAME_IN_PML = 0.01, 0.05
"""Relative tolerance between values of one loss, whose scores may be rounded to bfloat16; PML takes
all its sums in bfloat16."""
NOTHING = 1e-5
"""Absolute tolerance between values: SmoothAP of a small batch is almost zero."""


def cases(quick: bool) -> list[Case]:
    sizes, width = ((64,), 32) if quick else (SIZES, WIDTH)
    return [
        Case(SUITE, who, what, size, 1, width)
        for size in sizes
        for what in PLAIN
        for who in WHO
        if who != "pml" or what in IN_PML
    ]


def measure(case: Case, device: str) -> Measurement:
    if case.who == "pml" and find_spec("pytorch_metric_learning") is None:
        return Measurement(failure="not installed")
    step = prepare(case, device)
    step()
    once = seconds_per_call(step, device)
    if once > TOO_SLOW:
        return Measurement(failure=f"over {TOO_SLOW:.0f} s")
    alone = case.images >= BACK_TO_BACK or once > SLOW
    if alone:
        return measure_step(step, device, repeats=REPEATS, enough=ENOUGH_ALONE)
    return measure_step(step, device, calls=CALLS, repeats=REPEATS, enough=ENOUGH)


def prepare(case: Case, device: str) -> Step:
    b = bfloat16_batch(case, COSINE, device)
    loss = _loss(case)

    def forward_and_backward() -> tuple[Tensor, ...]:
        value = loss(b)
        return value.detach(), *torch.autograd.grad(value, (b.images, b.texts))

    return forward_and_backward


def _loss(case: Case) -> Callable[[Batch], Tensor]:
    if case.who == "pml":
        return pml_loss(case.what)
    if case.who == "ours":
        loss = gs.RetrievalLoss(case.what, checks=False, normalize=False)

        def ours(b: Batch) -> Tensor:
            value: Tensor = loss(b.images, b.texts, b.image_ids, b.text_ids)
            return value

        return ours
    plain = PLAIN[case.what]
    if case.who == "compiled":
        plain = compiled(plain)
    return lambda b: plain(b.images, b.texts)
