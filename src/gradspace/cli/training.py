"""`gradspace train`: from a recipe to a run, new or resumed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import typer

from gradspace import processes
from gradspace.cli import options
from gradspace.cli.recipe_keys import describe_keys
from gradspace.cli.shared import console, process_group, progress_bar
from gradspace.comparison.recipe import overlap
from gradspace.runs.recipe import load_recipe
from gradspace.training.start import train


def add_to(app: typer.Typer) -> None:
    app.command("train", epilog=describe_keys())(train_command)


def train_command(
    recipe: options.RecipeFile = None,
    model: options.ModelName = None,
    data: options.DataName = None,
    objective: options.ObjectiveName = None,
    batch: options.BatchOption = None,
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
    """Train a model. Ctrl-C stops after the current step; --resume continues without loss."""
    if number is not None and number > 1 and processes.num_launched() == 1:
        raise typer.Exit(processes.launch(number, sys.argv[1:]))
    short = {
        "model.name": ("--model", model),
        "data.source": ("--data", data),
        "objective.name": ("--objective", objective),
        "training.batch_size": ("--batch", batch),
        "training.chunk": ("--chunk", chunk),
        "seed": ("--seed", seed),
        "offline.lists": ("--offline-negatives", offline_negatives),
        "init": ("--init", init),
    }
    given = {key: (option, value) for key, (option, value) in short.items() if value is not None}
    _check_said_once(given, overrides or [])
    changes = [*(f"{key}={value}" for key, (_, value) in given.items()), *(overrides or [])]
    stopped = None
    with process_group():
        new = recipe is not None or changes or resume is None
        chosen = load_recipe(recipe, changes) if new else None
        try:
            train(chosen, out=out, resume=resume, device=device, console=console, show=progress_bar)
        except KeyboardInterrupt as error:
            stopped = error  # on all processes, which then leave the group together
    if stopped is not None:
        raise stopped


def _check_said_once(given: Mapping[str, tuple[str, object]], overrides: Sequence[str]) -> None:
    """Raise a ValueError if `--set` would silently override an option."""
    for override in overrides:
        name = override.partition("=")[0].strip()
        for key, (option, value) in given.items():
            if overlap(name, key):
                raise ValueError(
                    f"{option} {value} and --set {override} both set {key}: leave one of them out"
                )
