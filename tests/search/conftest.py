"""A tiny CLIP and a folder of photos, for tests of everything that searches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from models.tiny_dual import clip
from PIL import Image

from gradspace.system import System, load_system


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return clip(tmp_path_factory.mktemp("clip") / "tiny")


@pytest.fixture(scope="session")
def system(model: Path) -> System:
    return load_system(model, torch.device("cpu"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    write_photos(folder, range(10))
    return folder


def write_photos(folder: Path, numbers: range) -> None:
    """Half of them in a folder below."""
    (folder / "below").mkdir(parents=True, exist_ok=True)
    for number in numbers:
        place = folder / "below" if number % 2 else folder
        write_photo(place / f"{number:03}.png", number)


def write_photo(path: Path, number: int) -> None:
    """Another one for another number."""
    colours = np.random.default_rng(number).integers(256, size=(4, 4, 3), dtype=np.uint8)
    Image.fromarray(colours).resize((48, 40), Image.Resampling.NEAREST).save(path)
