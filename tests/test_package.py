"""The wheel: everything of src/gradspace is in it, and it works without the repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gradspace.comparison.builtin import list_builtin

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel and a source distribution, built from a copy that has only what is needed."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", cwd=copy)
    return copy / "dist"


def run(*command: str | Path, cwd: Path, path: Path | None = None) -> str:
    environment = {**os.environ, **({"PYTHONPATH": str(path)} if path else {})}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_nothing_is_left_out_of_the_wheel(packages: Path) -> None:
    [wheel] = packages.glob("*.whl")
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("gradspace/")}
    files = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "gradspace").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == files


def test_an_index_would_take_the_packages(packages: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", *packages.iterdir(), cwd=packages)


HIDE = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *where: None if name in HIDDEN else find(name, *where)
"""


def required() -> set[str]:
    """Distributions that gradspace is installed with, without any extra."""
    found, waiting = set(), ["gradspace"]
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in found:
            continue
        found.add(name)
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # of another platform
            continue
        for needed in map(Requirement, lines):
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                waiting.append(needed.name)
    return found


def hide_extras(folder: Path) -> None:
    """Make the modules of all other distributions missing, for processes with this PYTHONPATH."""
    kept = required()
    hidden = [
        module
        for module, names in metadata.packages_distributions().items()
        if not kept & {name.lower().replace("_", "-") for name in names}
    ]
    assert {"triton", "fastapi", "optuna"} <= set(hidden)
    (folder / "sitecustomize.py").write_text(f"HIDDEN = {json.dumps(hidden)}\n{HIDE}")


def test_an_unpacked_wheel_works_in_an_empty_folder(packages: Path, tmp_path: Path) -> None:
    [wheel] = packages.glob("*.whl")
    installed, empty = tmp_path / "installed", tmp_path / "empty"
    zipfile.ZipFile(wheel).extractall(installed)
    hide_extras(installed)
    empty.mkdir()

    def gradspace(*arguments: str) -> str:
        return run(sys.executable, "-m", "gradspace", *arguments, cwd=empty, path=installed)

    where = "import gradspace; print(gradspace.__file__)"
    assert str(installed) in run(sys.executable, "-c", where, cwd=empty, path=installed)
    assert len(gradspace("compare", "--list").splitlines()) == len(list_builtin())
    small = ("--set", "data.num_train=64", "--set", "data.num_test=40", "--set", "model.width=32")
    gradspace("train", *small, "--set", "training.epochs=1", "--out", "runs/first")
    gradspace("report", "runs/first", "--out", "page.html")
    assert "<svg" in (empty / "page.html").read_text()
