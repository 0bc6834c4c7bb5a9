"""Commands and programs in processes that are copies of one that has imported everything.

They are real processes, with signals, files and ends of their own. Importing is most of what a
short command does, and here it is done once.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

COPIES = multiprocessing.get_context("forkserver")
# It has started no thread: a copy of a process with threads may wait forever for a lock that one of
# them held.
COPIES.set_forkserver_preload(
    ["gradspace.cli.compare", "gradspace.cli.training", "gradspace.training", "torch._dynamo"]
)


class Copy:
    """A running copy that does some work; like a Popen whose outputs are pipes."""

    alive: set[Copy] = set()

    def __init__(self, work: Callable[..., None], *arguments: Any, cwd: Path | None = None) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.outputs = [Path(self.folder.name, name) for name in ("out", "errors")]
        given = (work, arguments, self.outputs, dict(os.environ), cwd or Path.cwd())
        self.process = COPIES.Process(target=_work, args=given)
        self.process.start()
        self.alive.add(self)

    @property
    def pid(self) -> int:
        assert self.process.pid
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end, and read what was printed."""
        self.process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.process), timeout or 0.0)
        self.alive.discard(self)
        out, errors = (path.read_text() for path in self.outputs)
        return out, errors

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(*arguments: str | Path, cwd: Path | None = None) -> Copy:
    """Start a command."""
    return Copy(run_command, *map(str, arguments), cwd=cwd)


def run_command(*arguments: str) -> None:
    from gradspace import __main__

    sys.argv = [str(__main__.__file__), *arguments]
    __main__.main()


def end_all() -> None:
    """End what a failed test has left behind."""
    for copy in [copy for copy in Copy.alive if copy.returncode is None]:
        copy.kill()
    Copy.alive.clear()


def _work(
    work: Callable[..., None],
    arguments: tuple[Any, ...],
    outputs: list[Path],
    environment: dict[str, str],
    cwd: Path,
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for number, path in enumerate(outputs, start=1):
        with path.open("wb") as file:
            os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(n, "w"), line_buffering=True) for n in (1, 2))
    work(*arguments)
