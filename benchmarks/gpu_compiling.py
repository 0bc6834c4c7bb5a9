"""torch.compile of the plain losses, one batch size at a time.

Compiling takes seconds for every loss and size. Before they are timed, separate processes compile
them in parallel and leave them in Inductor's cache on disk.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

import torch

from benchmarks.case import Case
from benchmarks.plain import PlainLoss

PROCESSES = 8
LARGEST = 16_384
"""Largest batch that fits into a GPU's memory once per process."""


def compiled(loss: PlainLoss) -> PlainLoss:
    """Compile a loss for the sizes of its first call, dropping what was compiled before."""
    import torch._inductor.config as inductor

    inductor.autotune_local_cache = False  # kernels were chosen while others used the GPU
    torch.compiler.reset()
    found: PlainLoss = torch.compile(loss, dynamic=False, fullgraph=True)
    return found


def compile_ahead(cases: Iterable[Case], device: str) -> None:
    """Fill the cache for the compiled cases; what fails here fails again when it is timed."""
    waiting = [case for case in cases if case.who == "compiled" and case.images <= LARGEST]
    if len(waiting) <= 1:
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(PROCESSES, len(waiting)), spawn, _use_one_thread) as pool:
        futures = [pool.submit(_compile, case, device) for case in waiting]
        failed = [future for future in futures if future.exception()]
    print(f"compiled {len(waiting) - len(failed)} of {len(waiting)} plain losses", flush=True)


def _use_one_thread() -> None:
    """Avoid a pool of compilers in every process; Inductor reads the variable on import."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"


def _compile(case: Case, device: str) -> None:
    from benchmarks.gpu_batches import prepare  # which imports this module

    prepare(case, device)()
    if device != "cpu":
        torch.cuda.empty_cache()
