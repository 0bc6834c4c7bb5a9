"""What several commands share: the console, progress bars, options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gradspace.data.dataset import Dataset
from gradspace.data.open import open_dataset
from gradspace.recipes import DataRecipe

console = Console()
errors = Console(stderr=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Device = Annotated[
    str | None, typer.Option(help="cpu or cuda; the GPU by default where there is one.")
]


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar with an estimate on stderr, moved by calling it with (done, total)."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = errors.is_terminal
    with Progress(*columns, console=errors, transient=True, disable=not shown) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def torch_device(name: str | None) -> torch.device:
    """The device of that name, or the best there is."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"--device is cpu or cuda, got {name!r}")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {name}: this machine has no GPU that torch can use")
    return torch.device(name)


def open_recipe_data(data: DataRecipe) -> Dataset:
    """The dataset of a recipe, with a bar where images have to be looked at."""
    with progress_bar("reading data") as progress:
        return open_dataset(
            data.source,
            images=data.images,
            features=data.features,
            skip_broken=data.skip_broken,
            progress=progress,
            **data.parameters,
        )
