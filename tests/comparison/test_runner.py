"""Real processes: a run that fails or is killed, a comparison that is stopped and goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from multiprocessing import Pipe
from pathlib import Path

import copied
import pytest
import torch
from commands import here
from copied import Copy
from small_runs import small_recipe

import gradspace as gs
from gradspace.analysis.cocos import Counting
from gradspace.comparison import worker
from gradspace.comparison.results import load_table
from gradspace.comparison.runner import Job, Runner
from gradspace.comparison.worker import Task
from gradspace.runs.analysis import load_analysis
from gradspace.runs.folder import Run
from gradspace.runs.recipe import Recipe
from gradspace.training.health import TrainingError
from gradspace.training.state import TrainingState

RECIPE = """
title = "Two objectives"
seeds = 2
[recipe.training]
epochs = 12
batch_size = 16
learning_rate = 1e-3
save_every = 0
track_every = 5
[datasets.scenes]
regions = { source = "scenes", num_train = 64, num_dev = 40, num_test = 40 }
[models."VSE++"]
reads = "regions"
model = { name = "vse++", width = 32, word_width = 16 }
[objectives.triplet]
[objectives.nt-xent]
"""


def run(tasks: list[Task], most: int = 2) -> list[Job]:
    return Runner([torch.device("cpu")], most).run(tasks, lambda jobs: None)


def task(folder: Path, recipe: Recipe | None = None) -> Task:
    return Task(folder, recipe or small_recipe(training={"epochs": 1}), "test", 1)


@pytest.mark.slow
def test_a_run_that_fails_does_not_hold_up_the_others(tmp_path: Path) -> None:
    nowhere = small_recipe(data={"source": str(tmp_path / "nowhere"), "num_train": 1})
    split = Task(tmp_path / "c", small_recipe(training={"epochs": 1}), "val", 1)
    jobs = run([task(tmp_path / "a", nowhere), task(tmp_path / "b"), split])
    assert [job.state for job in jobs] == ["failed", "finished", "failed"]
    assert "nowhere does not exist" in jobs[0].problem
    assert "has no split 'val', only train, dev, test" in jobs[2].problem
    assert Run(tmp_path / "b").results("test").is_file()
    assert Run(tmp_path / "b").analysis.is_file()
    other = task(tmp_path / "b", small_recipe(training={"epochs": 2}))
    [job] = run([other])
    assert "was trained with another recipe" in job.problem


def test_a_run_that_collapsed_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collapsed = task(tmp_path / "a")
    here, there = Pipe()

    def collapse(*_: object) -> TrainingState:
        trained.append(1)
        raise TrainingError("all images are one point")

    trained: list[int] = []
    monkeypatch.setattr(worker, "train_run", collapse)
    for again in ("", rf"; delete {tmp_path}/a to train it again"):
        with pytest.raises(TrainingError, match=f"^all images are one point{again}$"):
            worker.complete(collapsed, torch.device("cpu"), there, {})
    assert len(trained) == 1
    assert not here.poll()


@pytest.mark.slow
def test_a_process_that_is_killed_is_one_failed_run(tmp_path: Path) -> None:
    long = small_recipe(training={"epochs": 500, "save_every": 0})
    runner = Runner([torch.device("cpu")], 1)
    tasks = [task(tmp_path / "long", long), task(tmp_path / "short")]

    def kill_when_it_trains(jobs: object) -> None:
        if Run(tmp_path / "long").last.exists():
            for worker in runner.workers:
                if worker.job is not None and worker.job.task.folder.name == "long":
                    os.kill(worker.process.pid or 0, signal.SIGKILL)

    jobs = runner.run(tasks, kill_when_it_trains)
    assert [job.state for job in jobs] == ["failed", "finished"]
    assert "its process was killed (exit code -9)" in jobs[0].problem


def start(recipe: Path, out: Path, *more: str) -> Copy:
    return copied.start("compare", recipe, "--out", out, *more)


def finish(process: Copy) -> tuple[int | None, str, str]:
    output, errors = process.communicate(timeout=240)
    return process.returncode, output, errors


def wait_for_work(run: Run, process: Copy) -> None:
    """Until the run has saved something new."""
    deadline = time.monotonic() + 120
    before = run.last.stat().st_mtime_ns if run.last.exists() else 0
    while not run.last.exists() or run.last.stat().st_mtime_ns == before:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_stopped_killed_and_put_together_it_ends_with_the_same_table(tmp_path: Path) -> None:
    recipe, whole, out = tmp_path / "two.toml", tmp_path / "whole", tmp_path / "stopped"
    recipe.write_text(RECIPE)
    code, output, errors = finish(start(recipe, whole))
    assert (code, errors) == (0, ""), errors
    assert "wrote" in output
    first = ("--only", "seed=0")
    triplet = Run(out / "runs/scenes/VSE++/triplet/seed-0")
    process = start(recipe, out, *first)
    while not triplet.best.exists():
        wait_for_work(triplet, process)
    process.send_signal(signal.SIGINT)
    code, output, errors = finish(process)
    assert code in (1, 130), (output, errors)
    assert "the same command resumes" in output + errors
    early = here("report", triplet.folder, "--out", tmp_path / "early.html")
    assert early.returncode == 0, early.stderr
    assert triplet.results("test").exists(), "of weights that are not the last"
    process = start(recipe, out, *first)
    wait_for_work(triplet, process)
    workers = children(process.pid)
    assert workers
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60
    while any(is_running(worker) for worker in workers):
        assert time.monotonic() < deadline, "workers end with their parent"
        time.sleep(0.1)
    code, output, errors = finish(start(recipe, out, *first, "--json"))
    assert code == 0, errors
    assert {row["metric"] for row in json.loads(output)["results"]} >= {"rsum", "i2t C^q"}
    rows = load_table(whole / "results.parquet")
    assert {(row.objective, row.seed) for row in rows} == {
        (name, seed) for name in ("triplet", "nt-xent") for seed in (0, 1)
    }
    assert load_table(out / "results.parquet") == [row for row in rows if row.seed == 0]
    for objective in ("triplet", "nt-xent"):
        run = Path("runs/scenes/VSE++", objective, "seed-1")
        shutil.copytree(whole / run, out / run)
    best = sorted((out / "runs").glob("*/*/*/*/best.safetensors"))
    assert len(best) == 4
    before = [path.stat().st_mtime_ns for path in best]
    code, output, errors = finish(start(recipe, out))
    assert code == 0, errors
    assert [path.stat().st_mtime_ns for path in best] == before, "what is finished is kept"
    assert load_table(out / "results.parquet") == rows
    for name in ("two.md", "two.tex", "two.csv"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
def test_a_comparison_that_counts_otherwise_keeps_what_was_trained(tmp_path: Path) -> None:
    recipe, out = tmp_path / "two.toml", tmp_path / "out"
    small = RECIPE.replace("seeds = 2", "seeds = 1").replace("epochs = 12", "epochs = 2")
    recipe.write_text(small)
    only = ["objective=nt-xent"]
    first = gs.compare(recipe, out=out, only=only, jobs=1).to_dict()["results"]
    run = Run(out / "runs/scenes/VSE++/nt-xent/seed-0")
    trained = run.best.stat().st_mtime_ns
    recipe.write_text('cocos = { convention = "icr" }' + small)
    second = gs.compare(recipe, out=out, only=only, jobs=1).to_dict()["results"]
    assert run.best.stat().st_mtime_ns == trained
    assert load_analysis(run.analysis).counting == Counting(convention="icr")
    values = [{row["metric"]: row["value"] for row in rows} for rows in (first, second)]
    assert values[1]["i2t W+"] == pytest.approx(values[0]["i2t W+"] / 10)
    assert values[1]["rsum"] == values[0]["rsum"]
