"""Each addition of docs/how-to/extend.md needs one file and its test, in a copy of the house."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/how-to/extend.md").read_text()
PLACES = re.findall(r"src/(gradspace/[a-z_/]+\.py)", PAGE)
LOOPS = {
    "Add a triplet weight": """
TRIPLET_WEIGHTS["gaussian"] = lambda p, n: math.exp(-(((p - n) / 0.3) ** 2))
""",
    "Add a pair weight": """
PAIR_WEIGHTS["squared"] = lambda p, n, *_: ((1 - p) ** 2, max(n, 0.0) ** 2)
""",
    "Add a loss": """
def soft_triplet(pos: list[float], neg: list[float]) -> float:
    soft = math.log(sum(math.exp(n / 0.05) for n in neg)) * 0.05 if neg else -math.inf
    return sum(log1p_exp(soft - p) for p in pos) / len(pos)

LOSSES["soft-triplet"] = soft_triplet
""",
    "Add a metric": """
METRICS["MRR"] = lambda scores, mask: statistics.mean(
    1 / best_rank(*query) for query in ranked_queries(scores, mask)
)
""",
    "Add a model": "",
    "Add a dataset": "",
}
"""What is added to tests/oracles.py."""
TESTS = [
    "tests/test_contracts.py",
    "tests/objectives/test_objectives.py",
    "tests/metrics",
    "tests/models/test_model_contracts.py",
    "tests/models/test_model_registry.py",
    "tests/data/test_open.py",
    "tests/cli/test_cli.py",
    "tests/test_rooms.py",
]
NEW = "gaussian/linear or nca/squared or soft-triplet or MRR or two-layers"
LONG = "compiles or one_sentence"
WHOLE = "test_cli or test_rooms or test_open or test_measures or test_model_registry"


def sections() -> dict[str, str]:
    """Title -> the first block, which is a file or is added to one."""
    parts = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    found = {}
    for title, text in parts:
        block = re.search(r"```python\n(.*?)```", text, flags=re.DOTALL)
        if block is None:  # how to import a file of one's own
            continue
        found[title] = block[1]
    return found


@pytest.mark.slow
def test_one_file_and_its_test(tmp_path: Path) -> None:
    added = sections()
    assert added.keys() == LOOPS.keys()
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for file in ("pyproject.toml", "CONTRIBUTING.md"):
        shutil.copy(ROOT / file, tmp_path)
    places = dict(zip(added, dict.fromkeys(PLACES), strict=True))
    for title, code in added.items():
        place = tmp_path / "src" / places[title]
        if place.exists():  # it has the imports
            place.write_text(f"{place.read_text()}\n\n{code[code.index('@') :]}")
        else:
            place.write_text(f'"""Made up."""\n\n{code}')
    loops = tmp_path / "tests/oracles.py"
    loops.write_text(loops.read_text() + "\n" + "".join(LOOPS.values()))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS]
        + ["-k", f"({NEW} or {WHOLE}) and not ({LONG})"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    new = {"gaussian/linear", "nca/squared", "soft-triplet", "MRR", "two-layers", "pairs"}
    assert new <= set(_listed(tmp_path).split())


def _listed(root: Path) -> str:
    """Everything that a user of the copy can name."""
    program = """
import gradspace as gs
from gradspace.metrics import METRICS
from gradspace.models import models
from gradspace.data.readers import READERS
print(*(info.name for info in (*gs.list_objectives(), *models())), *METRICS, *READERS)
"""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
