"""GPU suite: training steps with negatives mined offline, beside steps without them.

Features and words are random, with 128 pairs at the published sizes. A step draws its batch, embeds
it together with what was mined for it, and updates the weights (AOQ supplement, Table 3).
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.case import Case
from benchmarks.gpu_timing import Step
from benchmarks.random_training import (
    IMAGES,
    batches_forever,
    feature_trainer,
    model_table,
    random_features,
    temporary_run,
)
from gradspace.data.dataset import Dataset
from gradspace.mining import mine_exact
from gradspace.mining.lists import save_lists
from gradspace.runs.folder import Run
from gradspace.scores.represented import Embeddings

SUITE = "steps"
ONLINE = "triplet-hard"
MINED = ("offline-triplet", "offline-quintuplet", "adaptive-offline-quintuplet")
MODELS = ("VSE++", "VSRN", "BFAN")
WARM_UP = 20
"""Steps before the first timed one: every caption length has its own plan on a GPU."""
TARGET = 1.5
"""Target for the time, relative to a step without mined negatives."""


def cases(quick: bool) -> list[Case]:
    batch, width = (16, 16) if quick else (128, 1024)
    return [Case(SUITE, who, what, batch, 1, width) for what in MODELS for who in (ONLINE, *MINED)]


def prepare(case: Case, device: str) -> Step:
    dataset, run = random_features(case.what, device), temporary_run()
    asked: dict[str, Any] = {
        "model": model_table(case.what, case.width),
        "objective": {"name": case.who},
        "training": {"batch_size": case.images},
    }
    if case.who != ONLINE:
        asked["offline"] = {"lists": str(_mine(dataset, run))}
    trainer = feature_trainer(dataset, run, device, **asked)
    batches = batches_forever(trainer)
    for batch in islice(batches, WARM_UP):
        trainer.train_on(batch)

    def step() -> tuple[Tensor, ...]:
        trainer.train_on(next(batches))
        return ()

    return step


def _mine(dataset: Dataset, run: Run) -> Path:
    """Mine lists from random embeddings."""
    split = dataset.splits["train"]
    images, texts = (torch.randn(len(x), 16) for x in (split.image_names, split.captions))
    ids = torch.arange(IMAGES), torch.from_numpy(split.image_of_caption)
    found = Embeddings(images, texts, *ids, list(split.image_names), list(split.captions))
    lists = run.folder / "lists.safetensors"
    save_lists(lists, mine_exact(found, top_texts=300, top_images=60))
    return lists
