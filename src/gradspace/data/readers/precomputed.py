"""SCAN's precomputed layout: `train_ims.npy`, `train_caps.txt`, `train_ids.txt` and so on.

Features are [rows, regions, width]. As many rows as captions means one row per caption: rows of
one image are then equal and consecutive. Otherwise there is one row per image, and every image has
the same number of consecutive captions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gradspace.data.dataset import Dataset, Features, PickedFeatures, Split, make_split
from gradspace.data.feature_files import FeatureFile
from gradspace.data.readers.registry import reader
from gradspace.data.text_files import read_lines

SPLITS = ("train", "dev", "test", "testall")


def _recognises(path: Path) -> bool:
    return path.is_dir() and any(path.glob("*_ims.npy"))


@reader(
    "precomputed", recognises=_recognises, looks_for="a folder with train_ims.npy, train_caps.txt"
)
def open_precomputed(path: Path, images: Path | None) -> Dataset:
    """SCAN's region features and captions, one row per image or per caption."""
    if images is not None:
        raise ValueError(f"{path} has features that do not name their images: leave images out")
    found = {file.name.removesuffix("_ims.npy") for file in path.glob("*_ims.npy")}
    if not found <= set(SPLITS):
        unknown = min(found - set(SPLITS))
        raise ValueError(f"{path} has {unknown}_ims.npy: splits are {', '.join(SPLITS)}")
    splits = {name: _open(path, name) for name in SPLITS if name in found}
    return Dataset(path.resolve().name, splits)


def _open(folder: Path, split: str) -> Split:
    features = FeatureFile(folder / f"{split}_ims.npy")
    captions = read_lines(folder / f"{split}_caps.txt")
    rows_per_image = _rows_per_image(features) if len(features) == len(captions) else 1
    num_images, rest = divmod(len(features), rows_per_image)
    per_image, uneven = divmod(len(captions), num_images)
    if rest or uneven or not per_image:
        raise ValueError(
            f"{folder} has {len(captions)} captions for {len(features)} rows of {split}_ims.npy; "
            "expected the same number of captions for every image"
        )
    picked: Features = features
    if rows_per_image > 1:
        picked = PickedFeatures(features, np.arange(num_images) * rows_per_image)
    names = _image_names(folder, split, num_images, per_image)
    return make_split(
        split,
        [(name, captions[i * per_image : (i + 1) * per_image]) for i, name in enumerate(names)],
        features=picked,
    )


def _rows_per_image(features: FeatureFile) -> int:
    """Count how many rows at the start are equal: 1 if there is one row per image."""
    first = features.load(0)
    rows = range(1, len(features))
    return next((row for row in rows if not np.array_equal(features.load(row), first)), len(rows))


def _image_names(folder: Path, split: str, num_images: int, per_image: int) -> list[str]:
    """Read `train_ids.txt`, with a line per image or per caption, or make up names."""
    path = folder / f"{split}_ids.txt"
    if not path.is_file():
        return [f"{split}-{index:06d}" for index in range(num_images)]
    names = [line.strip() for line in read_lines(path)]
    if len(names) not in (num_images, num_images * per_image):
        raise ValueError(
            f"{path} has {len(names)} lines; expected {num_images}, one per image, "
            f"or {num_images * per_image}, one per caption"
        )
    return names[:: len(names) // num_images]
