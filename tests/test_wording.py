"""Counts, shares and paths in sentences; that paths on the command line can be typed again."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from commands import here
from small_runs import small_recipe

from gradspace.runs.folder import Run, create_run
from gradspace.wording import counted


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0 pairs"), (1, "1 pair"), (2, "2 pairs"), (1500, "1,500 pairs")],
)
def test_one_is_not_many(number: int, said: str) -> None:
    assert counted(number, "pair") == said


def test_what_is_printed_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From training to an index, in a folder with a blank and a quote in its name."""
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "it's my"
    recipe = small_recipe(training={"epochs": 1})
    path = create_run(own / "first", recipe).recipe_file.rename(tmp_path / "recipe.toml")
    trained = here("train", path, "--out", own / "run").stdout.splitlines()
    command = shlex.split(trained[-1].removeprefix("done: "))
    at = command.index("evaluate")  # behind the program, wherever it is
    assert command[at:] == ["evaluate", str(own / "run")]
    assert here(*command[at:]).returncode == 0
    told = here("train", "--resume", own / "run").stdout
    more = shlex.split(told.partition("best weights: ")[2].splitlines()[0])
    assert here(*more[more.index("train") :], "--out", own / "more").returncode == 0
    assert Run(own / "more").recipe().init == own / "run"
    mined = here("mine", own / "run", "--out", own / "lists", "--top-images", "1").stdout
    assert "of 300 captions and 1 image to" in mined
    assert shlex.split(mined)[-2:] == ["--offline-negatives", str(own / "lists")]
    refused = here("train", path, "--out", own / "run").stderr
    assert f"--resume {shlex.quote(str(own / 'run'))}," in refused
    page = here("report", own / "run", "--out", own / "page.html").stdout
    assert shlex.split(page) == ["wrote", str(own / "page.html")]
    indexed = here("index", own / "run", "--out", own / "index").stdout
    assert indexed.startswith(f"{shlex.quote(str(own / 'index'))}: 240 items")
