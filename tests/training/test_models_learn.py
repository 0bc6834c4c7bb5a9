"""Every model learns: on the built-in data, and on real photos where they are at hand."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import train_small

from gradspace.data.dataset import Dataset, PickedFeatures, PickedImages, Split
from gradspace.data.open import open_dataset
from gradspace.models import model_info, models
from gradspace.runs.folder import Run, create_run
from gradspace.runs.recipe import Recipe, make_recipe
from gradspace.runs.system import new_system
from gradspace.training import train_run
from gradspace.training.monitor import Monitor

SHARED = Path(__file__).parents[3] / "shared"
FLICKR, RESNET = SHARED / "flickr8k", SHARED / "resnet50"

SMALL = {"width": 128, "word_width": 64}
SMALLER = {
    "scan": {"width": 64, "word_width": 32},
    "bfan": {"width": 64, "word_width": 32},
    "fusion": {"width": 64, "num_fusion_layers": 1},
}
"""Models that score pairs, which take longer."""
LEARNING = {"epochs": 3, "batch_size": 64, "learning_rate": 2e-3, "decay_epochs": []}
QUICKLY = {
    "bfan": {"epochs": 1, "batch_size": 32},
    "scan": {"epochs": 2, "batch_size": 32},
    "text-dual": {"epochs": 1},
    "vse-infinity": {"epochs": 2},
}
"""Models whose epochs take long."""


def dev_recalls(run: Run) -> list[tuple[float, float]]:
    """R@1 image -> text and text -> image after every epoch."""
    lines = [line["dev"] for line in run.metrics() if line["kind"] == "epoch"]
    return [
        (line["image_to_text"]["recall"]["1"], line["text_to_image"]["recall"]["1"])
        for line in lines
    ]


def small_model(name: str) -> dict[str, int]:
    known = model_info(name).parameters
    return {key: n for key, n in {**SMALL, **SMALLER.get(name, {})}.items() if key in known}


@pytest.mark.parametrize("name", [info.name for info in models() if not info.pretrained])
@pytest.mark.slow
def test_learns_the_built_in_data_to_ten_times_chance(name: str, tmp_path: Path) -> None:
    """200 dev images, or passages: chance is 0.5% of texts, and 0.5% of images."""
    source = "questions" if model_info(name).build.reads_passages else "scenes"
    run = train_small(
        tmp_path / "run",
        data={"source": source, "num_train": 800, "num_dev": 200, "num_test": 10},
        model={"name": name, **small_model(name)},
        objective={"name": "nt-xent"},
        training={**LEARNING, **QUICKLY.get(name, {})},
    )
    image_to_text, text_to_image = dev_recalls(run)[-1]
    assert image_to_text >= 10 * 0.5
    assert text_to_image >= 10 * 0.5


# --- real photos ---------------------------------------------------------------------------------


def first_images(split: Split, count: int) -> Split:
    """The first images of a split with their captions."""
    chosen = np.flatnonzero(split.image_of_caption < count)
    return replace(
        split,
        image_names=split.image_names[:count],
        captions=[split.captions[i] for i in chosen.tolist()],
        image_of_caption=split.image_of_caption[chosen],
        images=PickedImages(split.images, np.arange(count)) if split.images else None,
        features=PickedFeatures(split.features, np.arange(count)) if split.features else None,
    )


def flickr_slice(num_train: int, num_dev: int, features: Path | None = None) -> Dataset:
    dataset = open_dataset(FLICKR, features=features)
    sizes = {"train": num_train, "dev": num_dev}
    return replace(
        dataset, splits={name: first_images(dataset.splits[name], n) for name, n in sizes.items()}
    )


def train_on(dataset: Dataset, recipe: Recipe, folder: Path) -> Run:
    run = create_run(folder, recipe)
    system = new_system(recipe, dataset, run, torch.device("cpu"))
    with Monitor(None, 0) as monitor:
        train_run(recipe, dataset, system, run, monitor)
    return run


needs_flickr = pytest.mark.skipif(not FLICKR.is_dir(), reason="needs ../shared/flickr8k")
needs_resnet = pytest.mark.skipif(not RESNET.is_dir(), reason="needs ../shared/resnet50")


@needs_flickr
@pytest.mark.slow
def test_vse_pp_learns_from_pooled_features_of_real_photos(tmp_path: Path) -> None:
    """2,000 photos for 4 epochs; chance among 200 is 0.5%."""
    dataset = flickr_slice(2000, 200, FLICKR / "resnet50_pooled.npy")
    recipe = make_recipe(
        {
            "model": {"name": "vse++", "width": 128, "word_width": 64},
            "objective": {"name": "nt-xent"},
            "training": {"epochs": 4, "learning_rate": 1e-3, "decay_epochs": [3]},
        }
    )
    image_to_text, text_to_image = dev_recalls(train_on(dataset, recipe, tmp_path / "run"))[-1]
    assert image_to_text >= 10 * 0.5
    assert text_to_image >= 10 * 0.5


@pytest.fixture(scope="module")
def resnet50(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real backbone, unpacked into a transformers folder."""
    folder = tmp_path_factory.mktemp("resnet50")
    subprocess.run(
        [sys.executable, str(RESNET / "unpack.py"), str(folder)], check=True, capture_output=True
    )
    return folder


@needs_flickr
@needs_resnet
@pytest.mark.slow
@pytest.mark.parametrize("name", ["vse++", "vse-infinity"])
def test_learns_from_real_photos_through_a_real_backbone(
    name: str, resnet50: Path, tmp_path: Path
) -> None:
    """From the pixels: 8 photos through a frozen ResNet-50, then one epoch with it."""
    dataset = flickr_slice(8, 8)
    recipe = make_recipe(
        {
            "model": {"name": name, "width": 64, "word_width": 32, "backbone": str(resnet50)},
            "objective": {"name": "nt-xent"},
            "training": {"epochs": 1, "batch_size": 8, "learning_rate": 1e-3},
            "finetune": {"epochs": 1},
        }
    )
    run = train_on(dataset, recipe, tmp_path / "run")
    losses = [line["loss"] for line in run.metrics() if line["kind"] == "epoch"]
    assert losses[1] < losses[0]
    assert (run.folder / "backbone" / "config.json").exists()
