"""Training from a recipe to a run: `gs.train`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from gradspace import processes
from gradspace.commands import command
from gradspace.data.cache import NoRoom
from gradspace.data.dataset import Dataset
from gradspace.data.resident import keep_features
from gradspace.data.shards.index import LostShard
from gradspace.progress import Show, silently
from gradspace.runs.data import open_recipe
from gradspace.runs.folder import Run, check_free, open_run, started_run
from gradspace.runs.recipe import Recipe, build_objective, load_recipe, make_recipe
from gradspace.runs.system import prepare_system
from gradspace.training.loop import train_run
from gradspace.training.monitor import Monitor
from gradspace.training.schedule import stages
from gradspace.training.trackers import Track
from gradspace.wording import counted, typed


def train(
    recipe: Recipe | Mapping[str, Any] | str | Path | None = None,
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    device: str | None = None,
    console: Console | None = None,
    show: Show = silently,
    track: Track | None = None,
) -> Run:
    """Train a run to its end, new or from where it stopped.

    Ctrl-C stops after the current step and raises KeyboardInterrupt; `resume` continues exactly.

    Args:
        recipe: a TOML file, or its tables as a dictionary; omitted keys have published values.
        out: folder of the new run; by default a new one under runs/, named after the recipe.
        resume: folder of a run to resume, instead of a recipe.
        device: cpu or cuda; by default the GPU if there is one.
        console: where to show progress; nowhere by default.
        track: a function that gets every measurement, as numbers by name, and its step.

    Examples:
        >>> run = train({"training": {"epochs": 1}}, out="runs/first")  # doctest: +SKIP
        >>> gs.evaluate(run.folder)  # doctest: +SKIP
    """
    if resume is not None and (recipe is not None or out is not None):
        raise ValueError(
            "--resume takes everything from the run: leave the other options out; to train "
            "with other settings, start a new run from its weights with --init"
        )
    chosen = processes.choose_device(device)
    if resume is not None:
        run = open_run(Path(resume))
        _train(run, _open(run.recipe(), chosen, show, run), chosen, console, show, track)
    else:
        new = _as_recipe(recipe)
        folder = Path(out) if out else default_folder(new)
        if processes.is_first():
            check_free(folder)
        dataset = _open(new, chosen, show)
        with _new_run(folder, new) as run:
            _train(run, dataset, chosen, console, show, track)
    return run


def _as_recipe(given: Recipe | Mapping[str, Any] | str | Path | None) -> Recipe:
    if isinstance(given, Recipe):
        return given
    if isinstance(given, Mapping):
        return make_recipe(given)
    return load_recipe(None if given is None else Path(given))


@contextmanager
def _new_run(folder: Path, recipe: Recipe) -> Iterator[Run]:
    """Let the first process make a run, and choose its folder for all."""
    if not processes.is_first():
        yield Run(Path(processes.from_first("")))
        return
    with started_run(folder, recipe) as run:
        processes.from_first(str(folder))
        yield run


def _check_shared(run: Run) -> None:
    """Raise a ValueError if a machine does not see the folder that the first process writes to."""
    if processes.any_of(not run.recipe_file.is_file()):
        raise ValueError(
            f"{run.folder} is not there on every machine: put the run on a file system that all of "
            "them share, and give --out as a path from the root"
        )


def _open(recipe: Recipe, device: torch.device, show: Show, run: Run | None = None) -> Dataset:
    with show("reading data") as progress:
        dataset = open_recipe(recipe.data, progress, run=run.folder if run else None)
    return keep_features(dataset, device)


def _train(
    run: Run,
    dataset: Dataset,
    device: torch.device,
    console: Console | None,
    show: Show,
    track: Track | None,
) -> None:
    """Train to the end and show progress; a KeyboardInterrupt names the command that resumes."""
    _check_shared(run)
    recipe, say = run.recipe(), console or Console(quiet=True)
    with show("reading captions") as progress:
        system = prepare_system(run, recipe, dataset, device, progress)
    names = f"{recipe.model.name}, {recipe.objective.name}"
    _tell(say, f"{dataset.description}\n{names} -> {typed(run.folder)}")
    for note in filter(None, (system.note, build_objective(recipe).value_note)):
        _tell(say, note)
    end = stages(recipe)[-1].end
    again = f"resume with {_resuming(run)}"
    try:
        with Monitor(console, end) as monitor:
            state = train_run(recipe, dataset, system, run, monitor, track)
    except KeyboardInterrupt:
        if not run.last.exists():
            raise
        raise KeyboardInterrupt(f"stopped at once, after the last checkpoint; {again}") from None
    except (LostShard, NoRoom) as error:
        if not run.last.exists():
            raise
        then = "put it back and" if isinstance(error, LostShard) else "then"
        raise ValueError(f"{error}; {then} {again}") from error
    if state.epoch < end:
        raise KeyboardInterrupt(f"stopped after {counted(state.step, 'step')}; {again}")
    if recipe.init is not None and state.best_rsum <= _rsum_at_start(run):
        _tell(
            say,
            f"no epoch is better on dev than the initial weights: {recipe.init} is still the best",
        )
    if not monitor.has_trained:
        _tell(
            say,
            f"nothing is left of the {counted(end, 'epoch')} of {typed(run.folder)}; to train on "
            f"from its best weights: {command('train', run.recipe_file, '--init', run.folder)}",
        )
    _tell(say, f"done: {command('evaluate', run.folder)}")


def _resuming(run: Run) -> str:
    """Return the command that resumes a run, with the current number of processes."""
    number = processes.num_launched()
    shared = ("--processes", str(number)) if number > 1 else ()
    return command("train", "--resume", run.folder, *shared)


def _tell(console: Console, sentence: str) -> None:
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def _rsum_at_start(run: Run) -> float:
    """Return the rsum on dev of the weights of another run; -inf without a dev split."""
    start = next(run.metrics())
    return float(start["dev"]["rsum"]) if start["kind"] == "start" else -inf


def default_folder(recipe: Recipe) -> Path:
    """Return runs/vse++-triplet-hard-0, or the next number that is free."""
    parts = (recipe.model.name, recipe.objective.name, str(recipe.seed))
    base = Path("runs") / re.sub(r"[^\w+.-]+", "-", "-".join(parts))
    candidates = [base, *(base.with_name(f"{base.name}.{number}") for number in range(2, 1000))]
    return next(folder for folder in candidates if not folder.exists())
