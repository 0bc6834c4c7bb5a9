"""RSICD as it is packed: one to five captions an image, many of them shared; AVIF in a zip."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from commands import here
from data.examples import SHARED
from models.tiny import resnet

from gradspace.data import open_dataset

RSICD = SHARED / "rsicd"
pytestmark = pytest.mark.skipif(not RSICD.is_dir(), reason="no ../shared/rsicd")


def some_of_it(folder: Path, num_images: int = 20) -> Path:
    """The first images of every split with their captions; pictures stay in the archive."""
    folder.mkdir()
    kept: set[str] = set()
    for split in ("train", "dev", "test"):
        names = (RSICD / f"{split}.txt").read_text().split()[:num_images]
        (folder / f"{split}.txt").write_text("\n".join(names))
        kept |= set(names)
    with open(RSICD / "captions.tsv", newline="") as file:
        header, *rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    lines = [header, *(row for row in rows if row[0] in kept)]
    (folder / "captions.tsv").write_text("".join("\t".join(row) + "\n" for row in lines))
    return folder


def test_splits_are_those_of_the_literature() -> None:
    splits = open_dataset(RSICD).splits
    sizes = {name: len(split.image_names) for name, split in splits.items()}
    assert sizes == {"train": 8734, "dev": 1094, "test": 1093}
    pictures = splits["test"].images
    assert pictures is not None
    assert pictures.load(0).size == (224, 224)


@pytest.mark.slow
def test_from_the_archive_to_recall(tmp_path: Path) -> None:
    folder, zipped = some_of_it(tmp_path / "some"), RSICD / "images.zip"
    told = here("data", "check", folder, "--images", zipped, "--json")
    report = json.loads(told.stdout)
    assert told.returncode == 0
    assert report["num_decoded"] == 60
    assert report["splits"][0]["captions_per_image"]["most"] <= 5
    assert report["splits"][0]["shared"]["num_shared"] > 0
    features, run = tmp_path / "features", tmp_path / "run"
    backbone = resnet(tmp_path / "backbone")
    told = here(
        *("data", "features", folder, "--images", zipped, "--backbone", backbone),
        *("--out", features, "--num-workers", "0"),
    )
    assert told.returncode == 0, told.stderr
    sizes = {"model.width": 16, "model.word_width": 8, "training.epochs": 2}
    values = {"data.features": features, "objective.positives": "text", **sizes}
    told = here(
        *("train", "--data", folder, "--batch", "16", "--out", run),
        *(f"--set={key}={value}" for key, value in values.items()),
    )
    assert told.returncode == 0, told.stderr
    measured = json.loads(here("evaluate", run, "--json").stdout)
    assert measured["rsum"] > 0
    assert measured["text_to_image"]["num_queries"] == report["splits"][2]["num_captions"]
