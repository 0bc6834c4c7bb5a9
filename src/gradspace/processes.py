"""Several processes that train or embed together, as started by `torchrun`.

With one process every function here does nothing or returns its argument.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

LAUNCHER = "GRADSPACE_LAUNCHER"
"""Environment variable with the launching process's id; processes end once that one has ended."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Constants of glibc's malloc.h."""
LARGEST_KEPT = 256 * 2**20
MOST_KEPT = 512 * 2**20


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_first() -> bool:
    """Whether this is the process that writes and prints."""
    return rank() == 0


# --- start and end ------------------------------------------------------------------------------


def num_launched() -> int:
    """Number of processes started by `torchrun` or `launch`; 1 without either."""
    return int(os.environ["WORLD_SIZE"]) if "RANK" in os.environ else 1


def local_rank() -> int:
    """Number of this process on its machine, and so of its GPU."""
    return int(os.environ["LOCAL_RANK"])


@contextmanager
def group() -> Iterator[None]:
    """Connect the launched processes, which then finish together or fail together.

    The first process that fails raises its error. The others lose the connection, or fail with the
    same error: one on every other machine says so, and the rest exit silently.
    """
    if num_launched() == 1:
        yield
        return
    if LAUNCHER in os.environ:
        end_with(int(os.environ[LAUNCHER]))
    store, number, size = next(rendezvous("env://"))
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=number, world_size=size)
    try:
        yield
        any_of(False)  # wait for the slowest: torchrun ends all once one exits with a code
    except BaseException as error:
        lost = isinstance(error, dist.DistError) or "gloo/transport" in str(error)
        if isinstance(error, Exception) and not _speaks(store, lost):
            sys.exit(1)
        if lost:
            raise RuntimeError(
                "another process of the run was lost or cannot be reached; look at its output"
            ) from error
        raise
    dist.destroy_process_group()


def _speaks(store: Any, lost: bool) -> bool:
    """Whether this process reports its error: the first one that fails on each machine does.

    An error of its own is reported only once, as other machines may have it too. If the first
    machine, which knows what was reported, is gone, the first process of each machine speaks.
    """
    try:
        first_here = int(store.add(f"gradspace/failed/{os.environ.get('GROUP_RANK')}", 1)) == 1
        return first_here and (lost or int(store.add("gradspace/failed", 1)) == 1)
    except dist.DistError:
        return local_rank() == 0


def launch(number: int, arguments: Sequence[str]) -> int:
    """Run gradspace in `number` processes on this machine, and return the exit code.

    The launcher is torchrun's: it forwards SIGINT and SIGTERM, and ends all processes if one fails.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable()  # the processes report their own errors
    os.environ[LAUNCHER] = str(os.getpid())
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // number)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=number,
        run_id="gradspace",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "gradspace", *arguments)
    except SignalException:
        return 130
    except ChildFailedError as error:
        failed, failure = error.get_first_failure()
        if failure.exitcode < 0:
            how = signal.Signals(-failure.exitcode).name
            raise RuntimeError(f"process {failed} of {number} was killed by {how}") from None
        return failure.exitcode
    return 0


def end_with(parent: int) -> None:
    """End this process soon after its parent ends, even if the parent is killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def leave(code: int | str | None) -> NoReturn:
    """Exit; if this is one of several processes, without Python's finalization.

    A gloo thread may still be releasing the last tensors it sent. If it asks for Python's lock
    during finalization it is terminated, and aborts the process (SIGABRT).
    """
    if num_launched() == 1 or not isinstance(code, int | None):
        sys.exit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


# --- memory and devices -------------------------------------------------------------------------


def keep_freed_memory() -> None:
    """Let large CPU tensors reuse the memory of freed ones.

    glibc returns every large block as soon as it is freed, and Linux hands it out again cleared,
    page by page, which takes more than a third of the time of a ResNet-50. On systems without glibc
    this does nothing.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or none that can be called
        return
    mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
    mallopt(M_TRIM_THRESHOLD, MOST_KEPT)


def choose_device(name: str | None = None) -> torch.device:
    """Choose the named device, or else the best; each of several processes gets its own GPU."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"--device must be cpu or cuda, got {name!r}")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {name}: this machine has no GPU that torch can use")
    if name == "cpu" or world_size() == 1:
        return torch.device(name)
    return _own_gpu(name)


def _own_gpu(name: str) -> torch.device:
    number, there_are = local_rank(), torch.cuda.device_count()
    if name != "cuda":
        raise ValueError(f"--device {name} is one GPU for several processes: use --device cuda")
    if number >= there_are:
        raise ValueError(
            f"at least {number + 1} processes need a GPU each, but this machine has {there_are}: "
            "start fewer, or use --device cpu"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


# --- communication ------------------------------------------------------------------------------


def any_of(flag: bool) -> bool:
    """Whether the flag is true in any process."""
    return total(int(flag)) > 0


def total(number: int) -> int:
    """Sum over all processes."""
    if world_size() == 1:
        return number
    numbers = torch.tensor(number)
    dist.all_reduce(numbers)
    return int(numbers)


def largest(number: int) -> int:
    """The largest that any process has."""
    if world_size() == 1:
        return number
    numbers = torch.tensor(number)
    dist.all_reduce(numbers, dist.ReduceOp.MAX)
    return int(numbers)


def from_first(text: str) -> str:
    """Text of the first process."""
    if world_size() == 1:
        return text
    texts = [text]
    dist.broadcast_object_list(texts, src=0, device=torch.device("cpu"))
    return texts[0]


def gather_texts(texts: list[str]) -> list[str]:
    """The texts of all processes, in the order of their ranks."""
    if world_size() == 1 or not any_of(bool(texts)):
        return texts
    lines = "".join(f"{json.dumps(text)}\n" for text in texts).encode()
    gathered = gather_rows(torch.tensor(list(lines), dtype=torch.uint8))
    return [json.loads(line) for line in bytes(gathered.tolist()).splitlines()]


def gather_rows(rows: Tensor, counts: Sequence[int] | None = None) -> Tensor:
    """Gather the rows of all processes in rank order; `counts` has their numbers, if known."""
    if world_size() == 1:
        return rows
    if counts is None:
        own = torch.tensor([len(rows)], device=rows.device)
        counts = gather_rows(own, [1] * world_size()).tolist()
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def average(values: Sequence[Tensor]) -> None:
    """Replace tensors by their means over all processes, in one transfer."""
    if world_size() == 1 or not values:
        return
    flat = torch.cat([value.flatten() for value in values])
    dist.all_reduce(flat)
    flat /= world_size()
    parts = torch.split(flat, [value.numel() for value in values])
    for value, part in zip(values, parts, strict=True):
        value.copy_(part.view_as(value))


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average gradients over processes, after any number of backward passes.

    This replaces DistributedDataParallel: a batch in chunks has one backward pass per chunk, and a
    parameter may not take part in any of them.
    """
    average([parameter.grad for parameter in parameters if parameter.grad is not None])


def copy_from_first(tensors: Iterable[Tensor]) -> None:
    """Overwrite tensors with those of the first process."""
    if world_size() > 1:
        for tensor in tensors:
            dist.broadcast(tensor, src=0)
