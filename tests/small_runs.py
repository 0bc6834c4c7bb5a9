"""Runs of seconds on the built-in data, for tests of training and of everything after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gradspace.data.dataset import Dataset
from gradspace.data.open import open_dataset
from gradspace.runs.folder import Run, create_run
from gradspace.runs.recipe import Recipe, make_recipe
from gradspace.runs.system import new_system
from gradspace.training import train_run
from gradspace.training.monitor import Monitor

DATA = {"source": "scenes", "num_train": 64, "num_dev": 40, "num_test": 40}
MODEL = {"name": "vse++", "width": 32, "word_width": 16}
TRAINING = {"epochs": 2, "batch_size": 32, "learning_rate": 1e-3, "track_every": 5}


def small_recipe(**tables: Any) -> Recipe:
    """20 steps in two epochs; tables of the recipe are merged into the defaults."""
    defaults: dict[str, Any] = {"data": DATA, "model": MODEL, "training": TRAINING}
    merged = {
        name: {**defaults.get(name, {}), **value} if isinstance(value, dict) else value
        for name, value in tables.items()
    }
    return make_recipe({**defaults, **merged})


def open_data(recipe: Recipe) -> Dataset:
    data = recipe.data
    return open_dataset(data.source, images=data.images, features=data.features, **data.parameters)


def train_small(folder: Path, **tables: Any) -> Run:
    """Train a small recipe in this process."""
    recipe = small_recipe(**tables)
    dataset = open_data(recipe)
    run = create_run(folder, recipe)
    system = new_system(recipe, dataset, run, torch.device("cpu"))
    with Monitor(None, 0) as monitor:
        train_run(recipe, dataset, system, run, monitor)
    return run
