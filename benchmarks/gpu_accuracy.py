"""Errors of the executions on a GPU against the dense one in float64, on equal inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

import gradspace as gs
from benchmarks.case import Batch, Case, make_batch
from benchmarks.gpu_cases import DEVICE, no_fallback, reason
from benchmarks.gpu_results import Accuracy
from benchmarks.losses import COSINE
from gradspace.execution.choice import Execution

EXECUTIONS: tuple[Execution, ...] = ("triton", "streamed")
DTYPES = {
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "tf32": torch.float32,
    "float16": torch.float16,
}


def accuracies(quick: bool) -> Iterator[Accuracy]:
    """Measure every objective in every precision, with 3 captions per image in random order."""
    images, width = (65, 20) if quick else (777, 100)
    batch = _shuffled(Case("accuracy", "-", "-", images, 3, width))
    for dtype in DTYPES:
        for execution in EXECUTIONS:
            for info in gs.list_objectives():
                yield _accuracy(dtype, execution, info.name, batch)


def _shuffled(case: Case) -> Batch:
    b = make_batch(case, COSINE)
    order = torch.randperm(len(b.texts), generator=torch.Generator().manual_seed(1))
    texts, text_ids = b.texts[order], b.text_ids[order]
    return Batch(*(x.to(DEVICE) for x in (b.images, texts, b.image_ids, text_ids)))


def _accuracy(dtype: str, execution: Execution, objective: str, batch: Batch) -> Accuracy:
    try:
        with no_fallback(), _tf32(dtype == "tf32"):
            found, again = (_results(objective, execution, batch, DTYPES[dtype]) for _ in range(2))
        reference = _results(objective, "dense", batch, DTYPES[dtype], exact=True)
    except Exception as error:  # one objective's failure says nothing about the others
        return Accuracy(dtype, execution, objective, failure=reason(error))
    errors = [_relative_error(x, r) for x, r in zip(found, reference, strict=True)]
    same_bits = all(x.equal(y) for x, y in zip(found, again, strict=True))
    return Accuracy(dtype, execution, objective, errors[0], max(errors[1:]), same_bits)


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _results(
    objective: str, execution: Execution, b: Batch, dtype: torch.dtype, exact: bool = False
) -> list[Tensor]:
    """Compute the value and both gradients; `exact`: in float64, of inputs rounded to `dtype`."""
    rounded = (x.to(dtype) for x in (b.images, b.texts))
    images, texts = ((x.double() if exact else x).requires_grad_() for x in rounded)
    loss = gs.RetrievalLoss(objective, execution=execution)
    value = loss(images, texts, b.image_ids, b.text_ids)
    return [value.detach(), *torch.autograd.grad(value, (images, texts))]


def _relative_error(found: Tensor, reference: Tensor) -> float:
    """Relative error, infinite instead of NaN, so that it counts as the worst."""
    error = float((found.double() - reference).norm() / reference.norm())
    return error if error == error else float("inf")
