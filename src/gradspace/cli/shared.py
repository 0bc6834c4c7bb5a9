"""What several commands share: the console, progress bars, options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gradspace import processes
from gradspace.data.dataset import Dataset
from gradspace.runs.data import open_recipe
from gradspace.runs.recipe import DataRecipe

console = Console()
errors = Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Device = Annotated[
    str | None, typer.Option(help="cpu or cuda; the GPU by default where there is one.")
]
Data = Annotated[
    str | None,
    typer.Option(help="Another dataset than the one the run was trained on; a name or a path."),
]
Features = Annotated[
    Path | None,
    typer.Option(help="Features of other data than the run was trained on, or in another place."),
]


@contextmanager
def process_group() -> Iterator[None]:
    """All processes that torchrun has started, of which the first one prints."""
    with processes.group():
        console.quiet = errors.quiet = not processes.is_first()
        yield


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar with an estimate on stderr, moved by calling it with (done, total)."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = errors.is_terminal
    with Progress(*columns, console=errors, transient=True, disable=not shown) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def open_recipe_data(data: DataRecipe) -> Dataset:
    """The dataset of a recipe, with a bar where images have to be looked at."""
    with progress_bar("reading data") as progress:
        return open_recipe(data, progress)
