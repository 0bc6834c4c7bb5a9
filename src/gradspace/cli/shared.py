"""Console and progress bars of all commands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, ConsoleDimensions
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gradspace import processes
from gradspace.progress import Progress as Progressed

PIPED = 10_000
"""Width of output that is not shown on a terminal."""


class Output(Console):
    """Wraps lines only on a terminal: piped output is for other programs, or for a file."""

    @property
    def size(self) -> ConsoleDimensions:
        shown = super().size
        if self.is_terminal or "COLUMNS" in os.environ:
            return shown
        return ConsoleDimensions(PIPED, shown.height)

    @size.setter
    def size(self, new: tuple[int, int]) -> None:
        self._width, self._height = new


console = Output()
errors = Output(stderr=True)


@contextmanager
def process_group() -> Iterator[None]:
    """Join all processes started by torchrun; the first one prints."""
    with processes.group():
        console.quiet = errors.quiet = not processes.is_first()
        yield


@contextmanager
def progress_bar(what: str) -> Iterator[Progressed]:
    """Show a bar with an estimate on stderr, advanced by calls with (done, total)."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    shown = errors.is_terminal
    with Progress(*columns, console=errors, transient=True, disable=not shown) as bar:
        task = bar.add_task(what, total=None)

        def move(done: int, total: int) -> None:
            if done < bar.tasks[0].completed:  # a second pass, which gets a new estimate
                bar.reset(task)
            bar.update(task, completed=done, total=total)

        yield move
