"""Small datasets on disk, for tests to open and to damage."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from gradspace.data import Split
from gradspace.data.dataset import make_split
from gradspace.data.image_files import ImageFolder, StoredImages

SHARED = Path(__file__).parents[3] / "shared"
FLICKR8K = SHARED / "flickr8k"
needs_flickr8k = pytest.mark.skipif(not FLICKR8K.is_dir(), reason="no ../shared/flickr8k")

NAMES = {"train": ["a.jpg", "b.png", "c.avif", "d.jpg"], "dev": ["e.jpg"], "test": ["f.jpg"]}


def picture(seed: int, size: tuple[int, int] = (48, 36)) -> Image.Image:
    """Noise with large grains, so that lossy formats keep most of it."""
    grains = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(grains).resize(size, Image.Resampling.BILINEAR)


def write_images(folder: Path, names: list[str], size: tuple[int, int] = (48, 36)) -> Path:
    for seed, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        picture(seed, size).save(folder / name)
    return folder


def zip_folder(folder: Path, path: Path, prefix: str = "") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, prefix + file.relative_to(folder).as_posix())
    return path


def captions_of(name: str, number: int = 2) -> list[str]:
    return [f"caption {k} of {name}" for k in range(number)]


def write_table(folder: Path) -> Path:
    """captions.tsv, train.txt, dev.txt, test.txt and images/, two captions per image."""
    every = [name for names in NAMES.values() for name in names]
    write_images(folder / "images", every)
    rows = [f"{name}\t{caption}" for name in every for caption in captions_of(name)]
    (folder / "captions.tsv").write_text("\n".join(["image\tcaption", *rows]) + "\n")
    for split, names in NAMES.items():
        (folder / f"{split}.txt").write_text("\n".join(names) + "\n")
    return folder


def write_karpathy(path: Path, entries: list[tuple[str, str, list[str]]], folder: str = "") -> Path:
    """Entries are file name, split, captions."""
    images = [
        {
            "filename": name,
            "imgid": number,
            "split": split,
            "sentences": [{"raw": text, "tokens": text.split()} for text in captions],
            **({"filepath": folder} if folder else {}),
        }
        for number, (name, split, captions) in enumerate(entries)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"images": images, "dataset": "small"}))
    return path


class ArrayFeatures:
    """Features in memory that cannot gather."""

    def __init__(self, rows: NDArray[np.float32]) -> None:
        self.rows = rows
        self.shape = rows.shape[1:]

    def __len__(self) -> int:
        return len(self.rows)

    def load(self, index: int) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self.rows[index]
        return row


def small_split(num_images: int = 20, captions: int = 5, images: Path | None = None) -> Split:
    """Features [num_images, 3] that are the image's index; with a folder, pictures too."""
    names = [f"{index}.jpg" for index in range(num_images)]
    rows = np.repeat(np.arange(num_images, dtype=np.float32)[:, None], 3, axis=1)
    stored = StoredImages(ImageFolder(write_images(images, names)), names) if images else None
    described = [(name, captions_of(name, captions)) for name in names]
    return make_split("train", described, stored, ArrayFeatures(rows))
