"""Time and extra memory of a step on a GPU; on a CPU, in tests, only its time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from math import inf

import torch
from torch import Tensor

from benchmarks.case import Measurement

Step = Callable[[], tuple[Tensor, ...]]
"""Function to time. It returns the loss, or another number to compare implementations by, and the
gradients; the bare product and a training step return nothing."""

FEWEST = 3
"""Least number of repeats, however long they take."""


def measure_step(
    step: Step, device: str, *, calls: int = 1, repeats: int = FEWEST, enough: float = inf
) -> Measurement:
    """Time `calls` in a row, `repeats` times; return the median, divided by `calls`.

    A first call compiles the kernels. After `enough` seconds no further repeat is started.
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
    """Time calls in a row, as a training loop makes them, until the GPU is done."""
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
