"""The console and the progress bars of all commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gradspace import processes
from gradspace.progress import Progress as Progressed

console = Console()
errors = Console(stderr=True)


@contextmanager
def process_group() -> Iterator[None]:
    """Join all processes that torchrun has started; the first one prints."""
    with processes.group():
        console.quiet = errors.quiet = not processes.is_first()
        yield


@contextmanager
def progress_bar(what: str) -> Iterator[Progressed]:
    """Show a bar with an estimate on stderr, moved by calling it with (done, total)."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = errors.is_terminal
    with Progress(*columns, console=errors, transient=True, disable=not shown) as bar:
        task = bar.add_task(what, total=None)

        def move(done: int, total: int) -> None:
            if done < bar.tasks[0].completed:  # a second pass, whose time is estimated anew
                bar.reset(task)
            bar.update(task, completed=done, total=total)

        yield move
