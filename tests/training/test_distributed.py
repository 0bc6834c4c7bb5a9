"""Several processes, real ones, that train, stop, fail and embed as one process does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import copied
import pytest
import torch
from safetensors.torch import load_file, save_file
from several import start_together, together
from small_runs import open_data, small_recipe, train_small
from torch import nn
from training.test_resume import assert_same, steps_saved, wait_until_saved

from gradspace import processes
from gradspace.metrics import retrieval_report
from gradspace.runs import represent
from gradspace.runs.folder import Run, create_run
from gradspace.runs.represent import embed_split
from gradspace.runs.system import load_system, new_system, prepare_system
from gradspace.scores.represented import load_embeddings, save_embeddings
from gradspace.tensor_files import load_tensors
from gradspace.training import train_run
from gradspace.training.loop import Trainer
from gradspace.training.monitor import Monitor

VSRN = {
    "name": "vsrn",
    "width": 32,
    "word_width": 16,
    "num_blocks": 1,
    "caption_decoder": True,
    "caption_dropout": 0.0,
}
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


# --- the same gradient, the same weights --------------------------------------------------------


def write_gradients(folder: Path, tables: dict[str, Any]) -> None:
    """Write those of the first batch; BatchNorm is frozen, as it normalises within a process."""
    recipe = small_recipe(**tables)
    dataset = open_data(recipe)
    run = Run(folder)
    system = new_system(recipe, dataset, run, torch.device("cpu"))
    trainer = Trainer(recipe, dataset, system, run, Monitor(None, 0))
    for part in system.model.modules():
        if isinstance(part, nn.BatchNorm1d):
            nn.init.ones_(part.weight)
            part.eval()
    outcome = trainer._backward(next(iter(trainer.batches())))
    processes.average_gradients(system.model.parameters())
    found = {n: p.grad for n, p in system.model.named_parameters() if p.grad is not None}
    found["loss"] = outcome.loss
    if outcome.extra is not None:
        processes.average([outcome.extra])
        found["extra"] = outcome.extra
    save_file(found, folder / f"{processes.rank()}.safetensors")


@pytest.mark.parametrize(
    ("number", "tables"),
    [
        (2, {}),
        (3, {"objective": {"name": "nt-xent"}}),
        (2, {"model": VSRN, "training": {"captions_per_image": 3, "batch_size": 15}}),
        (3, {"model": VSRN, "training": {"chunk": 4}}),
        (2, {"objective": {"name": "smooth-ap"}, "training": {"captions_per_image": "all"}}),
    ],
    ids=["even", "uneven", "vsrn", "in chunks", "smooth-ap"],
)
@pytest.mark.slow
def test_the_mean_gradient_is_that_of_one_process(
    number: int, tables: dict[str, Any], tmp_path: Path
) -> None:
    one, several = tmp_path / "one", tmp_path / "several"
    one.mkdir()
    several.mkdir()
    write_gradients(one, {**tables, "training": {**tables.get("training", {}), "chunk": None}})
    together(number, write_gradients, several, tables)
    expected = load_file(one / "0.safetensors")
    for rank in range(number):
        found = load_file(several / f"{rank}.safetensors")
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def train_together(folder: Path, tables: dict[str, Any], stop_after: int | None = None) -> None:
    """Train a small run to its end, or until the last process is asked to stop."""
    recipe = small_recipe(**tables)
    dataset = open_data(recipe)
    if processes.is_first() and not (folder / "recipe.toml").exists():
        create_run(folder, recipe)
    run = Run(folder)
    system = prepare_system(run, recipe, dataset, torch.device("cpu"))
    last = processes.rank() == processes.world_size() - 1
    train_run(recipe, dataset, system, run, StopsAfter(stop_after if last else None))


class StopsAfter(Monitor):
    """Asks its own process to stop after so many batches."""

    def __init__(self, num_batches: int | None) -> None:
        super().__init__(None, 0)
        self.left = num_batches

    def batch_done(self, num_pairs: int, loss: float) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    ("number", "training", "memory"),
    [
        (2, {"ema": 0.9, "accumulate": 2}, 0),
        (3, {"batch_size": 31, "chunk": 6}, 40),
    ],
)
@pytest.mark.slow
def test_processes_end_where_one_does(
    number: int, training: dict[str, Any], memory: int, tmp_path: Path
) -> None:
    tables = {"objective": {"name": "nt-xent", "memory": memory}, "training": training}
    whole = train_small(tmp_path / "one", **tables)
    together(number, train_together, tmp_path / "several", tables)
    run = Run(tmp_path / "several")
    expected, _ = load_tensors(whole.best)
    found, _ = load_tensors(run.best)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    for line, other in zip(run.metrics(), whole.metrics(), strict=True):
        assert line["loss"] == pytest.approx(other["loss"], rel=1e-3)
        if "image_to_text" in line:
            assert line["image_to_text"] == pytest.approx(other["image_to_text"], rel=0.05)


# --- stopping and failing -----------------------------------------------------------------------

STOCHASTIC = {
    "model": {"dropout": 0.3},
    "objective": {"name": "nt-xent", "memory": 50},
    "training": {"ema": 0.9, "batch_size": 30, "chunk": 8},
}


@pytest.mark.slow
def test_stopped_by_one_process_and_resumed(tmp_path: Path) -> None:
    """Bit by bit as if nothing had been, with dropout; with fewer processes at least to the end."""
    whole, run = Run(tmp_path / "whole"), Run(tmp_path / "run")
    together(2, train_together, whole.folder, STOCHASTIC)
    together(2, train_together, run.folder, STOCHASTIC, 4)
    assert steps_saved(run) == 4
    together(2, train_together, run.folder, STOCHASTIC, 9)
    assert steps_saved(run) == 13
    together(2, train_together, run.folder, STOCHASTIC)
    assert_same(run, whole)

    other = Run(tmp_path / "other")
    for number, stop_after in ((2, 3), (3, 3), (1, None)):
        together(number, train_together, other.folder, STOCHASTIC, stop_after)
    assert steps_saved(other) == steps_saved(whole)
    random = load_tensors(other.last)[0]["random.cpu"]
    assert len(random) == 1


def write_seed(folder: Path) -> None:
    train_together(folder / "run", STOCHASTIC, 1)
    (folder / f"{processes.rank()}").write_text(str(torch.initial_seed()))


@pytest.mark.slow
def test_every_process_draws_its_own_dropout(tmp_path: Path) -> None:
    together(3, write_seed, tmp_path)
    seeds = {(tmp_path / f"{rank}").read_text() for rank in range(3)}
    assert len(seeds) == 3


def fail_in_the_last() -> None:
    if processes.rank() == 1:
        time.sleep(0.2)  # the first one waits already
        raise ValueError("this one fails")
    processes.gather_rows(torch.ones(1, 1))


@pytest.mark.slow
def test_one_that_fails_ends_the_others_without_a_word() -> None:
    started = start_together(2, fail_in_the_last)
    for process in started.processes:
        process.join(timeout=20)
    assert [process.exitcode for process in started.processes] == [1, 1]
    said = [Path(file).exists() for file in started.error_files]
    assert said == [False, True]


# --- embedding ----------------------------------------------------------------------------------


def embed_dev(folder: Path, out: Path) -> None:
    """40 images and 200 captions in batches of 16: shares are uneven, one of 4 is empty."""
    system = load_system(folder, torch.device("cpu"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(represent, "BATCH", 16)
        found = embed_split(system, open_data(Run(folder).recipe()).splits["dev"])
    save_embeddings(out / f"{processes.rank()}", found)


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 4])
def test_embeddings_do_not_depend_on_the_number_of_processes(number: int, tmp_path: Path) -> None:
    run = train_small(tmp_path / "run", training={"epochs": 1})
    (tmp_path / "one").mkdir()
    embed_dev(run.folder, tmp_path / "one")
    expected = load_embeddings(tmp_path / "one" / "0")
    together(number, embed_dev, run.folder, tmp_path)
    for rank in range(number):
        found = load_embeddings(tmp_path / f"{rank}")
        assert torch.equal(found.images, expected.images)
        assert torch.equal(found.texts, expected.texts)


# --- the command line ---------------------------------------------------------------------------

TRAIN = [
    *("--set", "data.num_train=64", "--set", "data.num_dev=40", "--set", "data.num_test=40"),
    *("--set", "model.width=32", "--set", "model.word_width=16", "--set", "model.dropout=0.3"),
    *("--set", "training.epochs=20", "--set", "training.save_every=0", "--chunk", "8"),
]


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str] | copied.Copy) -> tuple[int | None, str, str]:
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


@pytest.mark.slow
def test_train_stop_resume_and_evaluate(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    train = ("train", "--processes", "2")
    process = copied.start(*train, *TRAIN, "--batch", "33", "--out", run.folder)
    wait_until_saved(run, 4, process)
    process.send_signal(signal.SIGINT)
    code, output, errors = finish(process)
    assert code == 130, output
    assert errors.startswith("gradspace: stopped after")
    assert (errors.count("--resume"), errors.count("\n")) == (1, 1), "the first process says so"
    assert errors.endswith(f"train --resume {run.folder} --processes 2\n")
    assert run.recipe().training.batch_size == 33
    assert run.recipe().training.chunk == 8
    assert 4 <= steps_saved(run) < 180
    code, output, errors = finish(copied.start(*train, "--resume", run.folder))
    assert (code, errors) == (0, "")
    assert output.count("done:") == 1
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")
    code, output, errors = finish(
        start(*torchrun, "gradspace", "evaluate", run.folder, "--split", "dev", "--json")
    )
    assert code == 0, errors
    found = embed_split(
        load_system(run.folder, torch.device("cpu")), open_data(run.recipe()).splits["dev"]
    )
    expected = retrieval_report(found.scores(), found.positives())
    assert json.loads(output)["rsum"] == pytest.approx(expected.rsum)


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    long = ("--set", "training.epochs=5000", "--out", run.folder)
    process = start("gradspace", "train", "--processes", "2", *TRAIN, *long)
    wait_until_saved(run, 1, process)
    process.kill()
    process.communicate(timeout=30)  # until nobody writes there any more


@pytest.mark.slow
def test_errors_of_all_processes_are_one_sentence(tmp_path: Path) -> None:
    refused = start("gradspace", "train", "--processes", "2", "--data", tmp_path / "nowhere")
    code, output, errors = finish(refused)
    assert (code, output) == (1, "")
    assert "does not exist" in errors
    assert len(errors.strip().splitlines()) == 1
