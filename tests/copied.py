"""Commands and programs in processes that are copies of one that has imported everything.

They are real processes, with signals, files and ends of their own. Importing is most of what a
short command does, and here it is done once, when the first copy is asked for.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, ClassVar

COPIES: ForkServerContext = multiprocessing.get_context("forkserver")
# The copied process has started no thread but pyarrow's for memory, which knows of copies: a copy
# of one with threads may wait forever for a lock that one of them held. It ends with the tests.
COPIES.set_forkserver_preload(
    [
        "torch._dynamo",
        "transformers.modeling_utils",
        "gradspace.cli.compare",
        "gradspace.cli.evaluation",
        "gradspace.cli.training",
        "gradspace.comparison.worker",
        "gradspace.training.start",
    ]
)


class Copy:
    """A running copy that does some work, in a session of its own.

    It is like a Popen whose outputs are pipes.
    """

    running: ClassVar[set[Copy]] = set()

    def __init__(self, work: Callable[..., None], *arguments: Any, cwd: Path | None = None) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.outputs = [Path(self.folder.name, name) for name in ("out", "errors")]
        given = (work, arguments, self.outputs, dict(os.environ), cwd or Path.cwd())
        self.process = COPIES.Process(target=_work, args=given)
        self.process.start()
        self.running.add(self)

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
        """Wait for its end and that of all it has started, and read what was printed; once."""
        deadline = time.monotonic() + (timeout or 300.0)
        self.process.join(timeout)
        while self.returncode is None or _is_there(self.pid):
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.process), timeout or 300.0)
            time.sleep(0.01)
        out, errors = (path.read_text() for path in self.outputs)
        self.forget()
        return out, errors

    def forget(self) -> None:
        self.folder.cleanup()
        self.running.discard(self)

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(*arguments: str | Path, cwd: Path | None = None) -> Copy:
    """Start a command."""
    return Copy(run_command, *map(str, arguments), cwd=cwd)


def run_command(*arguments: str) -> None:
    sys.argv = ["gradspace", *arguments]
    runpy.run_module("gradspace", run_name="__main__", alter_sys=True)


def end_all() -> None:
    """End what a failed test has left behind."""
    for copy in list(Copy.running):
        copy.process.kill()
        copy.process.join()
        copy.forget()


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _work(
    work: Callable[..., None],
    arguments: tuple[Any, ...],
    outputs: list[Path],
    environment: dict[str, str],
    cwd: Path,
) -> None:
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see `interrupts.withheld`
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for number, path in enumerate(outputs, start=1):
        with path.open("wb") as file:
            os.dup2(file.fileno(), number)
    out, errors = (io.FileIO(number, "w", closefd=False) for number in (1, 2))
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(out), line_buffering=True)
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(errors), line_buffering=True)
    work(*arguments)
