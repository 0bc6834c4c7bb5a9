"""Suite: large batches, forward + backward, with and without a score matrix in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

import gradspace as gs
from benchmarks.case import Batch, Call, Case, Measurement, Run, make_batch
from benchmarks.losses import COSINE, step
from benchmarks.peers import pml_loss
from benchmarks.tables import Table, megabytes, milliseconds, seconds, time_ratio

LARGE = 16_384
SIZES = (1024, 2048, 4096, 8192, LARGE, 32_768)
PEER_SIZES = (LARGE, 8192, 4096, 2048, 1024, 512)
"""Batch sizes tried in this order, as the memory of PML's NT-Xent grows with their cube."""
STREAMED = ("triplet-hard", "circle/sigmoid-ms", "nt-xent")
DENSE = SCALED = ("triplet-hard", "nt-xent")

MINED_TARGET, UNMINED_TARGET = 1.5, 4.5
"""Targets in bare products, if only the hardest negatives count and if all do."""
MEGABYTES_TARGET = 300


def cases(quick: bool) -> list[Case]:
    """List the cases, starting with the product of every batch size."""
    if quick:
        return _cases((256, 512), large=512, peer_sizes=(64,), width=32)
    return _cases(SIZES, LARGE, PEER_SIZES, width=512)


def _cases(
    sizes: tuple[int, ...], large: int, peer_sizes: tuple[int, ...], width: int
) -> list[Case]:
    rows = [("product", "product", size) for size in sorted({*sizes, *peer_sizes})]
    rows += [("streamed", what, large) for what in STREAMED]
    rows += [("dense", what, large) for what in DENSE]
    rows += [("pml", "nt-xent", size) for size in peer_sizes]
    rows += [("streamed", what, size) for what in SCALED for size in sizes if size != large]
    return [Case("scale", who, what, size, 1, width) for who, what, size in rows]


def prepare(case: Case) -> Call:
    batch = make_batch(case, COSINE)
    if case.who == "product":
        return Call(_product(batch))
    batch.images.requires_grad_()
    batch.texts.requires_grad_()
    match case.who:
        case "streamed" | "dense" as execution:
            return Call(step(_our_loss(case.what, execution), batch))
        case "pml":
            return Call(step(pml_loss(case.what), batch))
    raise ValueError(f"nobody is called {case.who!r}")


def _product(b: Batch) -> Run:
    # Filled, because memory that was never written to is not allocated yet.
    scores = torch.full((len(b.images), len(b.texts)), torch.nan)

    def product() -> dict[str, float]:
        torch.mm(b.images, b.texts.t(), out=scores)
        return {"last": scores[-1, -1].item()}

    return product


def _our_loss(what: str, execution: Literal["streamed", "dense"]) -> Callable[[Batch], Tensor]:
    loss = gs.RetrievalLoss(what, execution=execution)

    def both_ways(b: Batch) -> Tensor:
        value: Tensor = loss(b.images, b.texts)
        return value

    return both_ways


def check(measured: Mapping[Case, Measurement]) -> None:
    """Check that all implementations of a loss found the same value.

    For ours the gradient norm must agree as well; PML normalises, which ours do not here.
    """
    for case, found in measured.items():
        if case.who not in ("dense", "pml") or found.failure:
            continue
        ours = _streamed_numbers(case, measured)
        for name in ("loss", "gradient") if case.who == "dense" else ("loss",):
            if abs(found.numbers[name] - ours[name]) > 1e-3 * abs(ours[name]):
                raise ValueError(
                    f"{case} has {name} {found.numbers[name]}, streamed has {ours[name]}"
                )


def _streamed_numbers(case: Case, measured: Mapping[Case, Measurement]) -> dict[str, float]:
    """Numbers of ours, computed now if not measured, as PML stops at batches we have no row for."""
    streamed = replace(case, who="streamed")
    found = measured.get(streamed)
    return found.numbers if found and not found.failure else prepare(streamed).run()


def tables(measured: Mapping[Case, Measurement]) -> list[Table]:
    large = next(case.images for case in measured if case.who == "dense")
    return [_large_table(large, measured), _scaling_table(measured)]


def _large_table(large: int, measured: Mapping[Case, Measurement]) -> Table:
    peers = [case for case in measured if case.who == "pml"]
    too_large = [case for case in peers if measured[case].failure]
    shown = [case for case in measured if case.images == large and case.who != "pml"]
    shown += too_large[:1] + [case for case in peers if case not in too_large][:1]
    return Table(
        f"Scale: {large:,} images x {large:,} texts, forward + backward; targets: "
        f"{MINED_TARGET} products if mined, {UNMINED_TARGET} if not, {MEGABYTES_TARGET} MB",
        ["what", "batch", "seconds", "times the product", "extra MB"],
        [[_title(case), *_numbers(case, measured, seconds)] for case in shown],
    )


def _scaling_table(measured: Mapping[Case, Measurement]) -> Table:
    streamed = [case for case in measured if case.who == "streamed" and case.what in SCALED]
    streamed.sort(key=lambda case: (SCALED.index(case.what), case.images))
    return Table(
        "Scale: streamed, from batch to batch",
        ["objective", "batch", "ms", "times the product", "extra MB"],
        [[case.what, *_numbers(case, measured, milliseconds)] for case in streamed],
    )


def _title(case: Case) -> str:
    if case.who == "product":
        return "one bare matrix product (the floor)"
    return f"{case.what}, {'PML' if case.who == 'pml' else case.who}"


def _numbers(
    case: Case, measured: Mapping[Case, Measurement], duration: Callable[[Measurement], str]
) -> list[str]:
    """Format the columns that all rows have."""
    m = measured[case]
    product = measured[replace(case, who="product", what="product")]
    return [f"{case.images:,}", duration(m), time_ratio(m, product), megabytes(m)]
