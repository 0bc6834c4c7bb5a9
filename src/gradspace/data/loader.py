"""Batches made one after the other: on request, ahead of time in threads, or in processes."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, is_dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import torch
from PIL import AvifImagePlugin
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from gradspace.interrupts import withheld
from gradspace.processes import end_with

T = TypeVar("T")

AHEAD = 2
"""Number of batches that a worker makes ahead of time."""
STARTED_BY = "fork" if sys.platform == "linux" else None
"""How worker processes are started: "fork", which is seconds faster than "spawn", Python's choice
in the processes of a comparison, where every worker would import torch again for each epoch."""


class Plans(Protocol):
    """Descriptions of the batches, one after the other; their number is known in advance."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


@dataclass(frozen=True)
class Loader(Generic[T]):
    """Loader of `make(plan)` for every plan, in order; can be iterated more than once.

    Workers are processes if images are decoded, and threads if features are read: reading releases
    the GIL, and handing a batch of features from one process to another takes longer than reading
    it.
    """

    make: Callable[[Any], T]
    plans: Plans
    num_workers: int = 0
    in_processes: bool = False
    pin_memory: bool = False

    def __len__(self) -> int:
        return len(self.plans)

    def __iter__(self) -> Iterator[T]:
        if not self.num_workers:
            return map(self._make_here, self.plans)
        return self._from_processes() if self.in_processes else self._from_threads()

    def _make_here(self, plan: Any) -> T:
        return self._ready(self.make(plan))

    def _ready(self, batch: T) -> T:
        return _pinned(batch) if self.pin_memory and torch.cuda.is_available() else batch

    def _from_threads(self) -> Iterator[T]:
        made: deque[Future[T]] = deque()
        with ThreadPoolExecutor(self.num_workers) as threads:
            for plan in self.plans:
                made.append(threads.submit(self._make_here, plan))
                if len(made) > AHEAD * self.num_workers:
                    yield made.popleft().result()
            while made:
                yield made.popleft().result()

    def _from_processes(self) -> Iterator[T]:
        """Yield batches from processes; raise a ValueError of a worker without its traceback.

        Pinning is done here too: DataLoader's pinning thread and the training thread would wait for
        each other's hold of the GIL.
        """
        loader = DataLoader(
            _Batches(self.make),
            batch_size=None,
            sampler=self.plans,
            num_workers=self.num_workers,
            multiprocessing_context=STARTED_BY,
            prefetch_factor=AHEAD,
            collate_fn=_unchanged,
            worker_init_fn=partial(_start_worker, parent=os.getpid()),
            generator=torch.Generator(),  # the workers' seed must not be drawn from the global one
        )
        with withheld():
            batches = iter(loader)
        for batch in batches:
            if isinstance(batch, ValueError):
                raise batch
            yield self._ready(batch)


@dataclass(frozen=True)
class _Batches(TorchDataset[Any]):
    make: Callable[[Any], Any]

    def __getitem__(self, plan: Any) -> Any:
        try:
            batch = self.make(plan)
            _share(batch)
        except ValueError as error:
            return error
        return batch


def _share(batch: Any) -> None:
    """Move tensors to shared memory, where the main process reads them.

    This would happen anyway when the batch is handed over, but a failure there goes unnoticed.
    """
    if isinstance(batch, Tensor):
        try:
            batch.share_memory_()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise ValueError(
                "there is no room in shared memory (/dev/shm) for the batches of workers: make it "
                "larger (docker run --shm-size=1g), or read smaller batches with fewer workers "
                f"(num_workers): {error}"
            ) from error
    elif isinstance(batch, tuple) or is_dataclass(batch):
        for part in batch if isinstance(batch, tuple) else vars(batch).values():
            _share(part)


def _unchanged(batch: T) -> T:
    return batch


def _pinned(batch: Any) -> Any:
    if isinstance(batch, tuple):
        return tuple(map(_pinned, batch))
    pinned = isinstance(batch, str) or getattr(batch, "is_cuda", False)
    return batch if pinned else batch.pin_memory()


def _start_worker(worker: int, parent: int) -> None:
    end_with(parent)  # a worker handing over a batch would wait for ever, holding its locks
    # As many workers as cores would otherwise each start as many threads for every AVIF.
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
