"""Suite: forward + backward of the objectives, both directions, gradients to both sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import gradspace as gs
from benchmarks.case import Batch, Call, Case, Measurement, Run, make_batch
from benchmarks.loops import FORMULAS, loop_loss
from benchmarks.peers import pml_loss
from benchmarks.tables import Table, megabytes, memory_ratio, milliseconds, time_ratio

COSINE = 0.3
"""Cosine of a text and its image, near the hardest negative, so that some miss the margin."""
LOOP_QUERIES = 2560
"""Largest number of texts that the loops cover, along with an equal share of the images."""

OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "nt-xent": ("nt-xent", {}),
    "triplet-hard": ("triplet-hard", {}),
    "triplet": ("triplet", {}),
    "circle": ("circle", {}),
    "multi-similarity": ("multi-similarity", {}),
    "multi-similarity, not mined": ("multi-similarity", {"epsilon": None}),
    "smooth-ap": ("smooth-ap", {}),
    "circle/sigmoid-ms": ("circle/sigmoid-ms", {}),
}
ONE_SET = "smooth-ap, one set"
NOT_IN_PML = ("circle/sigmoid-ms",)
DIFFERENT_IN_PML = ("smooth-ap",)


def cases(quick: bool) -> list[Case]:
    if quick:
        return _rows("nt-xent", 16, 2, 8)
    return [
        case
        for images in (512, 4096)
        for captions in (1, 5)
        for what in OURS
        for case in _rows(what, images, captions, 512)
    ] + _rows(ONE_SET, 23, 23, 512)


def _rows(what: str, images: int, captions: int, width: int) -> list[Case]:
    peers = ["ours"]
    peers += ["pml"] if what not in NOT_IN_PML else []
    peers += ["loop"] if what in FORMULAS else []
    return [Case("losses", who, what, images, captions, width) for who in peers]


def prepare(case: Case) -> Call:
    batch = make_batch(case, COSINE)
    batch.images.requires_grad_()
    batch.texts.requires_grad_()
    match case.who:
        case "ours":
            return Call(step(our_loss(case.what), batch))
        case "pml":
            return Call(step(pml_loss(case.what), batch))
        case "loop":
            share = min(1.0, LOOP_QUERIES / len(batch.texts))
            fixed = step(loop_loss(case.what, share=0), batch) if share < 1 else None
            return Call(step(loop_loss(case.what, share), batch), share, fixed)
    raise ValueError(f"nobody is called {case.who!r}")


def step(loss: Callable[[Batch], Tensor], batch: Batch) -> Run:
    """Make a run of forward and backward, which returns the numbers to compare."""

    def forward_and_backward() -> dict[str, float]:
        batch.images.grad = batch.texts.grad = None
        value = loss(batch)
        value.backward()  # type: ignore[no-untyped-call]
        norms = [x.grad.norm() for x in (batch.images, batch.texts) if x.grad is not None]
        return {"loss": value.item(), "gradient": torch.stack(norms).norm().item()}

    return forward_and_backward


def our_loss(what: str) -> Callable[[Batch], Tensor]:
    """Make our loss, normalising the embeddings because PML's cosine similarity does too."""
    if what == ONE_SET:
        return _smooth_ap_in_one_set
    name, parameters = OURS[what]
    loss = gs.RetrievalLoss(gs.objective(name, **parameters), normalize=True)

    def both_ways(b: Batch) -> Tensor:
        value: Tensor = loss(b.images, b.texts, b.image_ids, b.text_ids)
        return value

    return both_ways


def _smooth_ap_in_one_set(b: Batch) -> Tensor:
    """Let the texts retrieve each other, each being a positive of itself, as in PML."""
    texts = torch.nn.functional.normalize(b.texts, dim=1)
    own = gs.match_ids(b.text_ids, b.text_ids)
    return gs.objective("smooth-ap")(texts @ texts.t(), own).mean()


def check(measured: Mapping[Case, Measurement]) -> None:
    """Check that all implementations of a loss found the same value and gradient norm."""
    for case, found in measured.items():
        ours = measured[_by("ours", case)]
        different = case.who == "pml" and case.what in DIFFERENT_IN_PML
        if different or found.failure or ours.failure or found.share < 1:
            continue
        for name, number in found.numbers.items():
            if abs(number - ours.numbers[name]) > 1e-3 * abs(ours.numbers[name]):
                raise ValueError(f"{case} has {name} {number}, ours has {ours.numbers[name]}")


def tables(measured: Mapping[Case, Measurement]) -> list[Table]:
    rows = [_row(case, measured) for case in measured if case.who == "ours"]
    columns = ["objective", "images", "captions / image", "ours ms", "ours MB", "PML ms", "PML MB"]
    columns += ["time ratio", "memory ratio", "loop ms", "loop ratio"]
    return [Table("Losses: forward + backward", columns, rows)]


def _row(case: Case, measured: Mapping[Case, Measurement]) -> list[str]:
    ours = measured[case]
    pml = measured.get(_by("pml", case))
    loop = measured.get(_by("loop", case))
    return [
        case.what + (" (PML's differs)" if case.what in DIFFERENT_IN_PML else ""),
        str(case.images),
        str(case.captions),
        milliseconds(ours),
        megabytes(ours),
        milliseconds(pml),
        megabytes(pml),
        time_ratio(pml, ours),
        memory_ratio(pml, ours),
        milliseconds(loop),
        time_ratio(loop, ours),
    ]


def _by(who: str, case: Case) -> Case:
    return Case(case.suite, who, case.what, case.images, case.captions, case.width)
