"""Several connected processes, for tests anywhere."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import copied as copied  # sets up what the processes are copies of
import pytest
import torch
from torch.multiprocessing.spawn import ProcessContext, ProcessExitedException, start_processes

from gradspace import processes


def together(number: int, work: Callable[..., None], *arguments: Any) -> None:
    """Do the work in so many connected processes, which know nothing of a test's patches."""
    started = start_together(number, work, *arguments)
    try:
        while not started.join(grace_period=60):
            pass
    except ProcessExitedException:  # a process that fails because another has is silent
        for file in filter(Path.exists, map(Path, started.error_files)):
            raise AssertionError(pickle.loads(file.read_bytes())) from None
        raise


def start_together(number: int, work: Callable[..., None], *arguments: Any) -> ProcessContext:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        pytest.skip("a process that has used CUDA cannot be copied")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    started: ProcessContext = start_processes(  # type: ignore[no-untyped-call]
        _connected, (number, port, work, arguments), number, join=False, start_method="forkserver"
    )
    return started


def _connected(
    rank: int, number: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(number), LOCAL_RANK=str(rank))
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    with processes.group():
        work(*arguments)
    processes.leave(0)  # as the command line does: gloo's threads can break Python's own end
