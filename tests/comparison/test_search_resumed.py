"""A search with real runs: killed at any moment it goes on with the points it would have had."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from commands import here
from comparison.test_runner import children, finish, is_running, start

from gradspace.comparison.results import load_table
from gradspace.report.compare import make_plan
from gradspace.wording import counted

SEARCH = """
title = "Tiny search"
seeds = 1
sample = 3
trials = 8
metrics = ["rsum"]
[parameters]
"training.learning_rate" = [1e-3, 1e-2, 1e37]
[recipe.training]
epochs = 1
batch_size = 16
[datasets.scenes]
regions = { source = "scenes", num_train = 32, num_dev = 20, num_test = 20 }
[models."VSE++"]
reads = "regions"
model = { name = "vse++", width = 16, word_width = 8 }
[objectives.smooth.parameters]
"objective.p1" = { low = -30.0, high = 0.0 }
"""


@pytest.mark.slow
def test_a_killed_search_goes_on_with_the_points_that_it_had_chosen(tmp_path: Path) -> None:
    recipe, out = tmp_path / "tiny.toml", tmp_path / "out"
    runs = out / "runs/scenes/VSE++"
    recipe.write_text(SEARCH)
    process = start(recipe, out, "--jobs", "2")
    while len(list(runs.glob("*/*/recipe.toml"))) < 5:  # of which three are the sample
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    workers = children(process.pid)
    process.kill()
    process.communicate()
    while any(map(is_running, workers)):
        time.sleep(0.05)
    assert not (out / "results.parquet").exists()
    begun = {path.name for path in runs.iterdir()}
    finished = {path: path.stat().st_mtime_ns for path in runs.glob("*/*/dev.parquet")}
    assert finished

    code, output, errors = finish(start(recipe, out, "--jobs", "2"))
    assert (code, errors) == (0, ""), errors
    points = {path.name for path in runs.iterdir()}
    assert begun <= points
    assert len(points) == 8, "no point was begun in vain"
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    collapsed = {path.parent.parent.name for path in runs.glob("*/*/failed.txt")}
    assert collapsed == {point for point in points if "learning_rate=1e+37" in point}
    assert f"{counted(len(collapsed), 'run')} collapsed, counted as rsum 0" in output
    values = {row.objective: row.value for row in load_table(out / "results.parquet")}
    assert len(values) == 8 - len(collapsed), "the table of all runs has what came to its end"
    table = (out / "tiny.md").read_text()
    assert [label for label in values if label in table] == [read_best(out / "tiny-best.toml")]
    assert f"with {read_best(out / 'tiny-best.toml').removeprefix('smooth ')}, rsum" in output
    assert "of 8 points" in output

    done = here("compare", out / "tiny-best.toml", "--out", out, "--seeds", "2", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    tested = {r.objective: r.seed for r in load_table(out / "results.parquet") if r.split == "test"}
    assert tested == {read_best(out / "tiny-best.toml"): 1}, "the last seed of one point"
    assert "best on dev" not in done.stdout


def read_best(recipe: Path) -> str:
    """The only run that the recipe has, which is named by its point."""
    [label] = {cell.objective for cell in make_plan(recipe).grid}
    return label
