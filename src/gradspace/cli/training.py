"""`gradspace train`: from a recipe to a run, from the start or from where it stopped."""

from __future__ import annotations

import sys

import typer

from gradspace import processes
from gradspace.cli import options
from gradspace.cli.recipe_keys import describe_keys
from gradspace.cli.shared import console, process_group, progress_bar
from gradspace.runs.recipe import load_recipe
from gradspace.training.start import train


def add_to(app: typer.Typer) -> None:
    app.command("train", epilog=describe_keys())(train_command)


def train_command(
    recipe: options.RecipeFile = None,
    model: options.ModelName = None,
    data: options.DataName = None,
    objective: options.ObjectiveName = None,
    batch: options.Batch = None,
    chunk: options.Chunk = None,
    seed: options.Seed = None,
    offline_negatives: options.OfflineNegatives = None,
    init: options.Init = None,
    overrides: options.Overrides = None,
    out: options.RunFolder = None,
    resume: options.Resume = None,
    number: options.NumProcesses = None,
    device: options.Device = None,
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
    stopped = None
    with process_group():
        new = recipe is not None or changes or resume is None
        chosen = load_recipe(recipe, changes) if new else None
        try:
            train(chosen, out=out, resume=resume, device=device, console=console, show=progress_bar)
        except KeyboardInterrupt as error:
            stopped = error  # which all processes do together, and leave the group together
    if stopped is not None:
        raise stopped
