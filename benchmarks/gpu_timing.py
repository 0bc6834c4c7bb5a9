"""Time and extra memory of a step on a GPU; in tests on a CPU, by its clock and without memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from math import inf

import torch
from torch import Tensor

from benchmarks.case import Measurement

Step = Callable[[], tuple[Tensor, ...]]
"""What is timed. It returns the loss, or another number that all who do the same must find, and the
gradients; the bare product and a training step return nothing."""

FEWEST = 3
"""Repeats, however long they take."""


def measure_step(
    step: Step, device: str, *, calls: int = 1, repeats: int = FEWEST, enough: float = inf
) -> Measurement:
    """The median over `repeats` of `calls`, one after the other, divided by their number.

    A first call compiles the kernels. From `enough` seconds on no further repeat is begun.
    """
    first = step()
    numbers = {"loss": first[0].item()} if first else {}
    del first
    before = _allocated(device)
    if before is not None:
        torch.cuda.reset_peak_memory_stats()
    times: list[float] = []
    while len(times) < repeats and (len(times) < FEWEST or calls * sum(times) < enough):
        times.append(seconds_per_call(step, device, calls))
    megabytes = None
    if before is not None:
        megabytes = (torch.cuda.max_memory_allocated() - before) / 1e6
    return Measurement(statistics.median(times), min(times), megabytes, numbers=numbers)


def seconds_per_call(step: Step, device: str, calls: int = 1) -> float:
    """Of calls one after the other, as a training loop makes them, until the GPU is done."""
    if device == "cpu":
        begin = time.perf_counter()
        for _ in range(calls):
            step()
        return (time.perf_counter() - begin) / calls
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(calls):
        step()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000 / calls


def _allocated(device: str) -> int | None:
    return None if device == "cpu" else int(torch.cuda.memory_allocated())
