"""A tiny CLIP and a folder of photos, for tests of everything that searches."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from indexes.made_photos import write_photos
from models.tiny_dual import clip

from gradspace.runs.system import System, load_system


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


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """One megabyte, where this user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    return place
