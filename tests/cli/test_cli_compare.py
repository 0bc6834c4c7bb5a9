"""`gradspace compare`, `report` and `analyse run | flips` as a user types them."""

from __future__ import annotations

import json
import os
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import here
from PIL import Image
from rich.console import Console
from small_runs import train_small
from typer.testing import CliRunner

from gradspace.cli import app
from gradspace.commands import command
from gradspace.comparison.builtin import list_builtin
from gradspace.comparison.compare import Compared, Findings, gather
from gradspace.comparison.results import load_table
from gradspace.comparison.show import show_findings
from gradspace.report.compare import make_plan
from gradspace.runs import finish
from gradspace.runs.recipe import make_recipe
from gradspace.runs.results import RunResults, results_of
from gradspace.runs.toml_files import read_toml

STUDY = """
title = "Margins"
seeds = 1
metrics = ["rsum"]
[recipe.training]
epochs = 1
batch_size = 32
[datasets.scenes]
regions = { source = "scenes", num_train = 64, num_dev = 40, num_test = 40 }
[models."VSE++"]
reads = "regions"
model = { name = "vse++", width = 32, word_width = 16 }
[objectives.triplet]
[parameters]
"objective.margin" = [0.1, 0.4]
"training.learning_rate" = [1e-3, 1e-2]
"""


def run(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "300"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def test_built_in_comparisons_are_listed_with_their_titles() -> None:
    lines = run("compare", "--list").splitlines()
    assert len(lines) == len(list_builtin())
    [line] = [line for line in lines if line.startswith("icr-table1 ")]
    assert line.endswith("  ICR Table 1: four losses on VSE++ and VSRN")
    assert json.loads(run("compare", "--list", "--json"))[0]["name"] == lines[0].split()[0]
    with pytest.raises(ValueError, match=r"expected a comparison: .*gradspace compare --list`"):
        run("compare")


@pytest.mark.parametrize(
    "recipe", ["icr-table1", "flickr8k/goal", "goal-table3", "goal-table5", "aoq-table1"]
)
def test_check_says_what_is_missing_and_where_it_goes(recipe: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["compare", recipe, "--check"])
    assert done.exit_code == 1
    assert "missing" in done.output
    needs = json.loads(run("compare", recipe, "--check", "--json"))
    assert all(need["about"] for need in needs), "every need has a sentence"
    assert run("compare", recipe, "--data", "scenes", "--check").endswith(
        f"nothing is missing; paths are relative to {Path.cwd()}\n"
    )


def test_nothing_to_be_checked_is_no_empty_table(tmp_path: Path) -> None:
    """Rich draws one without rows as wide as the output, which has no end where it is piped."""
    (tmp_path / "study.toml").write_text(STUDY)
    done = here("compare", tmp_path / "study.toml", "--check")
    title, told = done.stdout.splitlines()
    assert title == "Margins: 4 runs"
    assert told == f"nothing is missing; paths are relative to {Path.cwd()}"


@pytest.mark.parametrize("terminal", [True, False])
def test_bold_is_explained_where_it_is_seen(terminal: bool) -> None:
    console = Console(file=StringIO(), force_terminal=terminal)
    with console.capture() as seen:
        findings = Findings("Margins", [], ["a beats b."], {})
        show_findings(console, findings, Compared([], [], False), [])
    assert ("cannot be told apart from it" in seen.get()) == terminal
    assert "- a beats b." in seen.get()


def test_nothing_is_trained_while_files_are_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"needs data/flickr30k.*and 5 more are missing.*--check"):
        run("compare", "icr-table1", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="nowhere does not exist"):
        run("compare", "icr-table1", "--data", tmp_path / "nowhere")


@pytest.mark.slow
def test_a_study_ends_with_the_best_point_and_a_map(tmp_path: Path) -> None:
    recipe, out = tmp_path / "study.toml", tmp_path / "out"
    recipe.write_text(STUDY)
    change = "model.word_width=12"
    output = run("compare", recipe, "--out", out, "--set", change)
    rows = load_table(out / "results.parquet")
    found = {row.objective: row.value for row in rows if row.metric == "rsum"}
    assert {row.split for row in rows} == {"dev", "train"}, "test stays unseen"
    assert len(found) == 4
    best = max(found, key=lambda label: found[label])
    assert f"best on dev: VSE++, triplet with {best.removeprefix('triplet ')}" in output
    again = command("compare", out / "study-best.toml", "--out", out, "--set", change)
    assert output.endswith(f"on test, once: {again}\n")
    plan = make_plan(out / "study-best.toml", overrides=[change])
    assert [cell.labels for cell in plan.grid] == [("scenes", "VSE++", best, s) for s in range(5)]
    assert plan.comparison.split == "test"
    folder = plan.grid[0].folder(out / "runs")
    assert make_recipe(read_toml(folder / "recipe.toml")) == plan.grid[0].recipe, "is shared"
    with Image.open(out / "study.png") as picture:
        assert len(np.unique(np.asarray(picture.convert("L")))) > 20
    assert change in output
    assert change in (out / "study.html").read_text(), "the page says what the recipe does not"


@pytest.mark.slow
def test_runs_that_were_trained_one_by_one(tmp_path: Path) -> None:
    first = train_small(tmp_path / "first", objective={"name": "triplet"}, training={"epochs": 1})
    second = train_small(tmp_path / "second", objective={"name": "nt-xent"})
    third = train_small(tmp_path / "third", objective={"name": "nt-xent"}, data={"num_test": 30})
    page = tmp_path / "page.html"
    assert run("report", first.folder, second.folder, "--out", page) == f"wrote {page}\n"
    assert "nt-xent" in page.read_text()
    _, entries = gather([first.folder, first.folder / "."], torch.device("cpu"))
    assert len(entries) == 1
    other = train_small(tmp_path / "other", seed=1, objective={"name": "nt-xent"})
    wider = train_small(
        tmp_path / "wider", seed=2, objective={"name": "nt-xent"}, model={"width": 24}
    )
    seeds = [second.folder, other.folder]
    _, entries = gather(seeds, torch.device("cpu"))
    assert [entry.objective for entry in entries] == ["nt-xent", "nt-xent"]
    _, entries = gather([*seeds, wider.folder], torch.device("cpu"))
    assert [e.objective for e in entries] == ["nt-xent (second)"] * 2 + ["nt-xent (wider)"]
    same_name = shutil.copytree(wider.folder, tmp_path / "deeper" / "second")
    _, entries = gather([*seeds, same_name], torch.device("cpu"))
    assert [e.objective for e in entries[1:]] == [
        f"nt-xent ({second.folder})",
        f"nt-xent ({same_name})",
    ]
    assert "C^q" in run("analyse", "run", first.folder, second.folder)
    told = run("analyse", "run", second.folder, "--convention", "icr", "--epsilon", "0.02")
    assert "weights as ICR counts, larger than 0.02" in told
    flips = json.loads(run("analyse", "flips", first.folder, second.folder, "--json"))
    assert sum(len(queries) for queries in flips["i2t"].values()) == 40
    with pytest.raises(ValueError, match=r"flips are between two runs, and .* contain 1: give"):
        run("analyse", "flips", first.folder, first.folder)
    told = run("analyse", "flips", first.folder, second.folder, "--k", "5")
    assert f"only by {first.folder}" in told
    with pytest.raises(ValueError, match="runs from different test sets cannot be compared"):
        run("report", first.folder, third.folder, "--out", tmp_path / "none.html")
    with pytest.raises(ValueError, match="is neither a run"):
        run("report", tmp_path)


def test_weights_that_change_while_they_are_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train_small(tmp_path / "run", training={"epochs": 1})
    found_better = iter([True, False])

    def measured(*given: Any) -> RunResults:
        if next(found_better):
            os.utime(run.best, ns=(0, 0))
        return results_of(*given)

    monkeypatch.setattr(finish, "results_of", measured)
    with pytest.raises(ValueError, match="is still in training, and found better weights"):
        gather([run.folder], torch.device("cpu"))
    assert not run.results("test").exists()
    gather([run.folder], torch.device("cpu"))
    assert run.results("test").exists()
