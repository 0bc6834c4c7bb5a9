"""Run folders, which can be resumed, read, copied and deleted.

recipe.toml         the resolved recipe: `gradspace train RUN/recipe.toml` repeats the run
environment.json    versions, commit, machine, and the plug-ins it was trained with
metrics.jsonl       one line per measurement and evaluation
vocabulary.json     or tokenizer/: conversion of captions to tokens
backbone/           text-encoder/, pretrained/: configurations of pretrained parts, if any
last.safetensors    weights, optimiser, random states, from which `--resume` continues; for a
                    finished run of a comparison only its progress
best.safetensors    the weights with the highest rsum on dev
offline.safetensors mined negatives that the run is trained on, if any
test.parquet        ranks of every query on test, once evaluated (`gradspace compare`, `report`)
analysis.json       contributions to the gradient at the best weights, over the training set
trackers.json       sessions of Weights & Biases and MLflow that a resumed training continues
README.md           the model card: results, use, licences, recipe
.lock               held by the process that trains the run
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from gradspace.files import check_is_folder, check_out_folder, only_writer, write_atomically
from gradspace.plugins import imported
from gradspace.runs.recipe import Recipe, load_recipe, recipe_toml
from gradspace.wording import typed

BEFORE_TRAINING = (
    "recipe.toml",
    "environment.json",
    "metrics.jsonl",
    "vocabulary.json",
    "tokenizer",
    "backbone",
    "text-encoder",
    "pretrained",
    "offline.safetensors",
    "shards.json",
    "events.out.tfevents",
    "trackers.json",
    "wandb",
)
"""Files in the folder of a run before its first step."""


@dataclass(frozen=True)
class Run:
    """Folder of a run, and the paths of its files."""

    folder: Path

    @property
    def recipe_file(self) -> Path:
        return self.folder / "recipe.toml"

    @property
    def metrics_file(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def last(self) -> Path:
        return self.folder / "last.safetensors"

    @property
    def best(self) -> Path:
        return self.folder / "best.safetensors"

    @property
    def offline(self) -> Path:
        return self.folder / "offline.safetensors"

    @property
    def failure(self) -> Path:
        """File with the reason why training was refused and would be again."""
        return self.folder / "failed.txt"

    @property
    def analysis(self) -> Path:
        return self.folder / "analysis.json"

    def results(self, split: str, folds: int = 1) -> Path:
        return self.folder / f"{results_name(split, folds)}.parquet"

    @property
    def has_begun(self) -> bool:
        """Whether training went further than measuring its initial weights."""
        return self.last.exists() or any(line["kind"] != "start" for line in self.metrics())

    def recipe(self) -> Recipe:
        return load_recipe(self.recipe_file)

    def metrics(self) -> Iterator[dict[str, Any]]:
        """Yield every line of metrics.jsonl; none before the first measurement."""
        return _complete_lines(self.metrics_file)

    def log(self, **values: Any) -> None:
        """Append one line to metrics.jsonl."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def forget_results(self) -> None:
        """Delete what was measured with weights that are no longer the best."""
        for path in (*self.folder.glob("*.parquet"), self.analysis):
            path.unlink(missing_ok=True)

    def forget_after(self, step: int, epochs_done: int) -> None:
        """Delete what was measured after the checkpoint from which training resumes."""
        if self.metrics_file.exists():
            lines = _complete_lines(self.metrics_file)
            kept = [
                line
                for line in lines
                if line["step"] <= step and (line["kind"] != "epoch" or line["epoch"] < epochs_done)
            ]
            with write_atomically(self.metrics_file) as file:
                file.writelines(json.dumps(line) + "\n" for line in kept)


def results_name(split: str, folds: int = 1) -> str:
    """Name results `test`, or `test-5-folds`."""
    return split if folds == 1 else f"{split}-{folds}-folds"


def check_free(folder: Path) -> None:
    """Raise a ValueError if a new run would overwrite another run, or anything else.

    A run whose training was refused, for its data or its options, can be replaced.
    """
    if Run(folder).has_begun:
        raise ValueError(
            f"{typed(folder)} contains a run already: resume it with --resume {typed(folder)}, "
            "delete it, or choose another --out"
        )
    refused = (folder / "environment.json").is_file()
    check_out_folder(folder, "a run", BEFORE_TRAINING if refused else ())


def create_run(folder: Path, recipe: Recipe) -> Run:
    """Create a folder with the recipe and the environment; nothing in it is overwritten."""
    check_free(folder)
    run = Run(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with only_writer(folder):
        with write_atomically(folder / "environment.json") as file:
            json.dump(environment(), file, indent=2)
        with write_atomically(run.recipe_file) as file:
            file.write(recipe_toml(recipe))
    return run


@contextmanager
def started_run(folder: Path, recipe: Recipe) -> Iterator[Run]:
    """Create a run, and remove its folder again if its training fails to start."""
    places = (folder, *folder.absolute().parents)
    made = [place for place in places if not place.exists()]
    check_free(folder)
    run = Run(folder)
    try:
        yield create_run(folder, recipe)
    except BaseException:
        if folder.exists() and not (run.has_begun or run.failure.exists()):
            with suppress(ValueError), only_writer(folder):
                _take_away(folder, made)
        raise


def _take_away(folder: Path, made: Sequence[Path]) -> None:
    """Delete the files a run has before its first step, and the folders made for it.

    Other files in these folders are kept, and then so are the folders.
    """
    for path in list(folder.iterdir()):
        if path.name.startswith((".lock", *BEFORE_TRAINING)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for place in made:
        if any(place.iterdir()):
            return
        place.rmdir()


def open_run(folder: Path) -> Run:
    run = Run(folder)
    check_is_folder(folder, "the folder of a run")
    if not run.recipe_file.is_file():
        raise ValueError(f"{typed(folder)} is not a run: it has no recipe.toml")
    return run


def weights_digest(path: Path) -> str:
    """Identify the weights in a checkpoint, such as those that mined a list."""
    state = blake2b(digest_size=8)
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            state.update(part)
    return state.hexdigest()


def environment() -> dict[str, Any]:
    """Describe the versions and the machine of a run."""
    packages = ("gradspace", "torch", "transformers", "numpy", "pillow")
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "versions": {"python": platform.python_version(), **{p: version(p) for p in packages}},
        "commit": _commit(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
        "command": sys.argv,
        "imports": imported(),
    }


def _commit() -> str | None:
    """Return the commit of the gradspace checkout, if it runs from one."""
    here = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _complete_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield all lines except a last one that a killed process did not finish."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return
