"""The examples run, on tiny data, and print what they promise."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from indexes.made_photos import write_photos
from models import tiny_dual

EXAMPLES = Path(__file__).parent.parent / "examples"
pytestmark = pytest.mark.slow


def run(folder: Path, name: str, *arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name, *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dual.clip(tmp_path_factory.mktemp("clip"))


def test_a_training_loop_of_ones_own_learns(tmp_path: Path) -> None:
    said = run(tmp_path, "own_training_loop.py", "--epochs", "2", "--num-train", "300")
    losses = [float(value) for value in re.findall(r"last batch ([\d.]+)", said)]
    assert losses[-1] < losses[0]
    [rsum] = re.findall(r"rsum +([\d.]+)", said)
    assert float(rsum) > 10
    assert "C^q" in said or "per_query" in said


def test_clip_is_fine_tuned_and_exported(clip: Path, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", range(12))
    photos = sorted((tmp_path / "photos").rglob("*.png"))
    lines = [
        f"{path.relative_to(tmp_path / 'photos')}\ta red ball {i}" for i, path in enumerate(photos)
    ]
    (tmp_path / "photos" / "captions.tsv").write_text("\n".join(["image\tcaption", *lines]) + "\n")
    said = run(
        tmp_path,
        *("fine_tune_clip.py", clip, tmp_path / "photos", "--epochs", "1", "--batch", "4"),
    )
    assert len(re.findall("rsum", said)) == 2
    assert (tmp_path / "clip-photos" / "model.safetensors").exists()


def test_objectives_are_compared(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        *("compare_objectives.py", "triplet", "nt-xent", "--seeds", "2", "--epochs", "1"),
        *("--num-train", "64"),
    )
    assert "nt-xent" in said
    assert list((tmp_path / "compared" / "comparison").glob("*.html"))


def test_photos_are_searched(clip: Path, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", range(6))
    said = run(tmp_path, "search_photos.py", clip, tmp_path / "photos", "a red ball")
    assert "6 photos are in photos.index" in said
    assert len(re.findall(r"^-?\d\.\d{3}  ", said, flags=re.MULTILINE)) == 5


def test_the_notebook_runs(tmp_path: Path) -> None:
    cells = json.loads((EXAMPLES / "cocos.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert all(cell.get("outputs", []) == [] for cell in cells)
    (tmp_path / "program.py").write_text("\n\n".join(code))
    said = run(tmp_path, str(tmp_path / "program.py"))
    assert "circle/sigmoid-ms:" in said
