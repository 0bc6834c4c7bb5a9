"""Worker process that trains, evaluates and analyses runs, one after the other."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from gradspace.analysis.cocos import Counting
from gradspace.data.dataset import Dataset
from gradspace.data.resident import keep_features
from gradspace.files import link_or_copy, locked, write_atomically
from gradspace.metrics import RetrievalReport
from gradspace.plugins import import_plugin
from gradspace.processes import keep_freed_memory
from gradspace.runs.analysis import load_analysis, save_analysis
from gradspace.runs.data import open_recipe
from gradspace.runs.finish import evaluate_run
from gradspace.runs.folder import Run, started_run, weights_digest
from gradspace.runs.mine import mine_run
from gradspace.runs.recipe import Recipe
from gradspace.runs.recipe_tables import DataRecipe
from gradspace.runs.system import load_system, prepare_system
from gradspace.tensor_files import load_tensors, save_tensors
from gradspace.training import train_run
from gradspace.training.health import TrainingError
from gradspace.training.monitor import Monitor
from gradspace.training.schedule import stages
from gradspace.training.timing import seconds_per_batch

SAY_EVERY = 0.25
"""Seconds between two messages about a run in training."""


@dataclass(frozen=True)
class Task:
    """A run to be trained to its end, from its current state, and evaluated."""

    folder: Path
    recipe: Recipe
    split: str
    folds: int
    first: Path | None = None
    """Run of a first round, whose best model mines the negatives of this one."""
    timed: bool = False
    """Whether the duration of a training step is measured."""
    counting: Counting = field(default_factory=Counting)
    """Definition of a contribution for its analysis."""


@dataclass(frozen=True)
class Working:
    """Progress of a run."""

    share: float
    """Finished share of its batches, in [0, 1]."""
    rsum: float | None
    """Metric on dev after the last epoch."""
    memory: int
    """Peak memory of the GPU in bytes."""


@dataclass(frozen=True)
class Finished:
    """End of a task: its run has results, or a sentence that says why not."""

    problem: str | None = None


@dataclass(frozen=True)
class Stopped:
    """End of a task that was asked to stop, and can be resumed."""


def work(
    connection: Connection, device: torch.device, threads: int, plugins: Sequence[str]
) -> None:
    """Carry out tasks until the connection is closed."""
    os.setpgrp()  # Ctrl-C goes to the parent, which forwards it
    torch.set_num_threads(threads)
    keep_freed_memory()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    opened: dict[str, Dataset] = {}
    try:
        while True:
            task: Task = connection.recv()
            try:
                for plugin in plugins:
                    import_plugin(plugin)
                done = complete(task, device, connection, opened)
            except BrokenPipeError:
                raise
            except Exception as error:
                connection.send(Finished(" ".join(str(error).split()) or type(error).__name__))
                continue
            connection.send(Finished() if done else Stopped())
            if not done:
                return
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return


def complete(
    task: Task, device: torch.device, connection: Connection, opened: dict[str, Dataset]
) -> bool:
    """Complete what a run lacks; return False if it was asked to stop."""
    _check(task)
    dataset = _open(task.recipe.data, opened, device)
    dataset.split(task.split)  # fail early if the split for evaluation is missing
    run = Run(task.folder)
    with nullcontext(run) if run.has_begun else started_run(task.folder, task.recipe):
        if not _train(task, run, dataset, device, connection):
            return False
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    evaluate_run(run, dataset, device, task.split, task.folds, task.counting)
    analysis = load_analysis(run.analysis)
    if task.timed and analysis.seconds_per_batch is None:
        seconds = seconds_per_batch(run, dataset, device)
        save_analysis(run.analysis, replace(analysis, seconds_per_batch=seconds))
    _forget_optimizer(run)
    return True


def _train(
    task: Task, run: Run, dataset: Dataset, device: torch.device, connection: Connection
) -> bool:
    """Train a run; return False if it was asked to stop before its end."""
    if task.first and task.recipe.offline and not run.offline.exists():
        link_or_copy(_mined_by(task, dataset, device), run.offline)
    system = prepare_system(run, task.recipe, dataset, device)
    end = stages(task.recipe)[-1].end
    try:
        progress = train_run(task.recipe, dataset, system, run, Telling(connection, end, device))
    except TrainingError as error:
        with write_atomically(run.failure) as file:
            file.write(f"{error}; delete {run.folder} to train it again")
        raise
    return progress.epoch >= end


def _forget_optimizer(run: Run) -> None:
    """Reduce the checkpoint of a finished run to its progress, to save three quarters of space."""
    tensors, record = load_tensors(run.last)
    if tensors:
        save_tensors(run.last, {}, record)


def _mined_by(task: Task, dataset: Dataset, device: torch.device) -> Path:
    """Return the lists of a first round, mined when its first second round needs them."""
    assert task.first is not None
    assert task.recipe.offline is not None
    lengths = (task.recipe.offline.num_texts, task.recipe.offline.num_images)
    path = task.first / "lists-{}-{}.safetensors".format(*lengths)
    with locked(path):
        if not path.exists():
            mine_run(
                load_system(task.first, device),
                dataset,
                path,
                top_texts=lengths[0],
                top_images=lengths[1],
                source={"weights": weights_digest(Run(task.first).best)},
            )
    return path


class Telling(Monitor):
    """Reports the progress of a run to the parent process."""

    def __init__(self, connection: Connection, num_epochs: int, device: torch.device) -> None:
        super().__init__(None, num_epochs)
        self.connection = connection
        self.device = device
        self.rsum: float | None = None
        self._epoch, self._done, self._of, self._said = 0, 0, 1, 0.0

    def start_epoch(self, epoch: int, num_batches: int, first_batch: int) -> None:
        self._epoch, self._done, self._of = epoch, first_batch, max(num_batches, 1)

    def batch_done(self, num_pairs: int, loss: float) -> None:
        self._done += 1
        if time.monotonic() - self._said > SAY_EVERY:
            self._say()

    def epoch_done(self, epoch: int, loss: float, report: RetrievalReport | None) -> None:
        self._epoch, self._done = epoch + 1, 0
        self.rsum = report.rsum if report else None
        self._say()

    def _say(self) -> None:
        self._said = time.monotonic()
        share = (self._epoch + self._done / self._of) / self.num_epochs
        used = torch.cuda.max_memory_reserved(self.device) if self.device.type == "cuda" else 0
        self.connection.send(Working(share, self.rsum, used))


def _check(task: Task) -> None:
    """Reject a run that has failed for good, or is of another recipe."""
    run = Run(task.folder)
    if run.failure.exists():
        raise TrainingError(run.failure.read_text(encoding="utf-8"))
    if run.has_begun and run.recipe() != task.recipe:
        raise ValueError(
            f"{task.folder} was trained with another recipe: delete it, or choose another --out"
        )


def _open(data: DataRecipe, opened: dict[str, Dataset], device: torch.device) -> Dataset:
    """Open the dataset of a run; the previous one is kept: the next run mostly uses it too."""
    key = data.model_dump_json()
    if key not in opened:
        opened.clear()
        opened[key] = keep_features(open_recipe(data), device)
    return opened[key]
