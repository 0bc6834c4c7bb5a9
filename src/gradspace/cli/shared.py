"""What several commands share: the console, progress bars, options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gradspace import processes
from gradspace.data.dataset import Dataset
from gradspace.data.open import open_recipe
from gradspace.recipes import DataRecipe
from gradspace.runs import open_run

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


def torch_device(name: str | None) -> torch.device:
    """The device of that name, or the best there is; of several processes each has its own GPU."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"--device is cpu or cuda, got {name!r}")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {name}: this machine has no GPU that torch can use")
    if name == "cpu" or processes.world_size() == 1:
        return torch.device(name)
    return _own_gpu(name)


def _own_gpu(name: str) -> torch.device:
    number, there_are = processes.local_rank(), torch.cuda.device_count()
    if name != "cuda":
        raise ValueError(f"--device {name} is one GPU, and there are several processes: use cuda")
    if number >= there_are:
        raise ValueError(
            f"{number + 1} processes or more need a GPU each, and this machine has {there_are}: "
            "start fewer, or use --device cpu"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def run_data(run: Path, data: str | None, features: Path | None) -> DataRecipe:
    """The data that a run was trained on, or what is given in its place."""
    recipe = DataRecipe(source=data) if data else open_run(run).recipe().data
    return recipe.model_copy(update={"features": features}) if features else recipe


def open_recipe_data(data: DataRecipe) -> Dataset:
    """The dataset of a recipe, with a bar where images have to be looked at."""
    with progress_bar("reading data") as progress:
        return open_recipe(data, progress)
