"""A training step on a GPU with negatives that were mined offline, beside a step without them.

Random features and words, 128 pairs at the published sizes: what is in them does not change the
time. The step draws its batch, embeds it with what was mined for it in one pass, and updates the
weights (AOQ supplement, Table 3).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.case import Case
from gradspace.data.batches import Batch
from gradspace.data.dataset import Dataset, make_split
from gradspace.data.resident import ResidentFeatures
from gradspace.mining import mine_exact
from gradspace.mining.lists import save_lists
from gradspace.runs.folder import Run
from gradspace.runs.recipe import make_recipe
from gradspace.runs.system import new_system
from gradspace.scores.represented import Embeddings
from gradspace.training.loop import Trainer
from gradspace.training.monitor import Monitor

SUITE = "steps"
ONLINE = "triplet-hard"
MINED = ("offline-triplet", "offline-quintuplet", "adaptive-offline-quintuplet")
REGIONS, FEATURES = 36, 2048
SETTINGS: dict[str, tuple[str, dict[str, bool], tuple[int, ...]]] = {
    "VSE++": ("vse++", {}, (FEATURES,)),
    "VSRN": ("vsrn", {"caption_decoder": True}, (REGIONS, FEATURES)),
    "BFAN": ("bfan", {}, (REGIONS, FEATURES)),
}
IMAGES, CAPTIONS, NUM_WORDS = 600, 5, 4000
"""Of the dataset; a batch of a case has as many pairs as it has images."""
WORDS = (6, 15)
"""Of a caption; start and end are added."""
WARM_UP = 20
"""Steps before the first that is timed: every length of the captions has its own plan on a GPU."""
TARGET = 1.5
"""Times the step without mined negatives."""


def cases(quick: bool) -> list[Case]:
    batch, width = (16, 16) if quick else (128, 1024)
    return [
        Case(SUITE, who, what, batch, 1, 2 * width if what == "VSRN" else width)
        for what in SETTINGS
        for who in (ONLINE, *MINED)
    ]


def prepare(case: Case, device: str) -> Callable[[], tuple[Tensor, ...]]:
    name, settings, shape = SETTINGS[case.what]
    dataset = _dataset(shape, device)
    asked: dict[str, dict[str, Any]] = {
        "model": {"name": name, "width": case.width, **settings},
        "objective": {"name": case.who},
        "training": {"batch_size": case.images, "precision": "bfloat16"},
    }
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        if case.who != ONLINE:
            asked["offline"] = {"lists": str(_mine(dataset, run))}
        recipe = make_recipe(asked)
        system = new_system(recipe, dataset, run, torch.device(device))
        trainer = Trainer(recipe, dataset, system, run, Monitor(None, 0))
        system.model.train()
        batches = _again_and_again(trainer)
        for batch in islice(batches, WARM_UP):
            trainer.train_on(batch)

    def step() -> tuple[Tensor, ...]:
        trainer.train_on(next(batches))
        return ()

    return step


def _again_and_again(trainer: Trainer) -> Iterator[Batch]:
    while True:
        yield from trainer.batches()


def _dataset(shape: tuple[int, ...], device: str) -> Dataset:
    draw = np.random.default_rng(0)

    def caption() -> str:
        return " ".join(f"w{word}" for word in draw.integers(NUM_WORDS, size=draw.integers(*WORDS)))

    described = [(f"{index}.jpg", [caption() for _ in range(CAPTIONS)]) for index in range(IMAGES)]
    features = ResidentFeatures(torch.rand(IMAGES, *shape, device=device))
    return Dataset("random", {"train": make_split("train", described, features=features)})


def _mine(dataset: Dataset, run: Run) -> Path:
    """Lists of embeddings that mean nothing."""
    split = dataset.splits["train"]
    images, texts = (torch.randn(len(x), 16) for x in (split.image_names, split.captions))
    ids = torch.arange(IMAGES), torch.from_numpy(split.image_of_caption)
    found = Embeddings(images, texts, *ids, list(split.image_names), list(split.captions))
    lists = run.folder / "lists.safetensors"
    save_lists(lists, mine_exact(found, top_texts=300, top_images=60))
    return lists
