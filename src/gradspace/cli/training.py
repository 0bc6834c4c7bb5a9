"""`gradspace train`: from a recipe to a run, from the start or from where it stopped."""

from __future__ import annotations

import re
import sys
from math import inf
from pathlib import Path
from typing import Annotated

import typer

from gradspace import processes
from gradspace.cli.shared import Device, console, open_recipe_data, process_group
from gradspace.data.dataset import Dataset
from gradspace.data.resident import keep_features
from gradspace.processes import choose_device
from gradspace.runs.folder import Run, create_run, open_run
from gradspace.runs.recipe import Recipe, load_recipe
from gradspace.runs.system import prepare_system
from gradspace.training import train
from gradspace.training.monitor import Monitor
from gradspace.training.schedule import stages


def add_to(app: typer.Typer) -> None:
    app.command("train")(train_command)


def train_command(
    recipe: Annotated[Path | None, typer.Argument(help="A TOML file; see docs/train.md.")] = None,
    model: Annotated[str | None, typer.Option(help="Short for --set model.name=...")] = None,
    data: Annotated[str | None, typer.Option(help="Short for --set data.source=...")] = None,
    objective: Annotated[
        str | None, typer.Option(help="Short for --set objective.name=...")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Short for --set training.batch_size=...")
    ] = None,
    chunk: Annotated[
        int | None,
        typer.Option(
            min=1, help="Short for --set training.chunk=...: rows of a batch in memory at once."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Short for --set seed=...")] = None,
    offline_negatives: Annotated[
        Path | None,
        typer.Option(
            metavar="LISTS",
            help="Short for --set offline.lists=...: train on what `gradspace mine` found.",
        ),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Short for --set init=...: start from its best weights."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Change any key of the recipe."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; runs/MODEL-OBJECTIVE-SEED by default.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with a run that was stopped.")
    ] = None,
    number: Annotated[
        int | None,
        typer.Option("--processes", min=1, help="Processes that share every batch, one per GPU."),
    ] = None,
    device: Device = None,
) -> None:
    """Train a model. Ctrl-C stops after the current step; --resume goes on without loss."""
    if number is not None and number > 1 and processes.num_launched() == 1:
        raise typer.Exit(processes.launch(number, sys.argv[1:]))
    short = {
        "model.name": model,
        "data.source": data,
        "objective.name": objective,
        "training.batch_size": batch,
        "training.chunk": chunk,
        "seed": seed,
        "offline.lists": offline_negatives,
        "init": init,
    }
    changes = [*(f"{k}={v}" for k, v in short.items() if v is not None), *(overrides or [])]
    with process_group():
        if resume is None:
            run = new_run(load_recipe(recipe, changes), out)
        elif recipe is not None or changes or out is not None:
            raise ValueError("--resume takes everything from the run: leave the other options out")
        else:
            run = open_run(resume)
        finished = run_training(run, run.recipe(), device)
    if not finished:
        raise typer.Exit(130)


def new_run(recipe: Recipe, out: Path | None) -> Run:
    """Made by the first process, in a folder that it chooses for all."""
    if processes.is_first():
        out = create_run(out or default_folder(recipe), recipe).folder
    return Run(Path(processes.from_first(str(out))))


def run_training(run: Run, recipe: Recipe, device: str | None) -> bool:
    """Train a run, showing how it goes; whether it got to its end."""
    chosen = choose_device(device)
    dataset = keep_features(open_recipe_data(recipe.data), chosen)
    system = prepare_system(run, recipe, dataset, chosen)
    console.print(
        f"{describe(dataset)}\n{recipe.model.name}, {recipe.objective.name} -> {run.folder}"
    )
    with Monitor(console, stages(recipe)[-1].end) as monitor:
        progress = train(recipe, dataset, system, run, monitor)
    if progress.epoch < stages(recipe)[-1].end:
        console.print(
            f"stopped after {progress.step} steps; go on with "
            f"gradspace train --resume {run.folder}",
            highlight=False,
            soft_wrap=True,
        )
        return False
    if recipe.init is not None and progress.best_rsum <= _rsum_at_start(run):
        console.print(
            f"no epoch is better on dev than what it began with: {recipe.init} is still the best",
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"done: gradspace evaluate {run.folder}", highlight=False, soft_wrap=True)
    return True


def _rsum_at_start(run: Run) -> float:
    """On dev, of the weights of another run; below all where there is no dev."""
    start = next(run.metrics())
    return float(start["dev"]["rsum"]) if start["kind"] == "start" else -inf


def describe(dataset: Dataset) -> str:
    """One line: splits with their sizes, and what was left out."""
    sizes = ", ".join(
        f"{name} {len(split.image_names):,} {split.kinds[0]}s / "
        f"{len(split.captions):,} {split.kinds[1]}s"
        for name, split in dataset.splits.items()
    )
    left_out = f"; {len(dataset.problems)} items left out" if dataset.problems else ""
    return f"{dataset.name}: {sizes}{left_out}"


def default_folder(recipe: Recipe) -> Path:
    """runs/vse++-triplet-hard-0, with a number behind it if that exists."""
    parts = (recipe.model.name, recipe.objective.name, str(recipe.seed))
    base = Path("runs") / re.sub(r"[^\w+.-]+", "-", "-".join(parts))
    candidates = [base, *(base.with_name(f"{base.name}.{number}") for number in range(2, 1000))]
    return next(folder for folder in candidates if not folder.exists())
