"""Real training processes, stopped in every way, end with the numbers of one that was not."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import copied
import pytest
import torch
from copied import Copy
from models import tiny
from safetensors import safe_open
from small_runs import train_small

from gradspace.metrics import RetrievalReport
from gradspace.runs import evaluate
from gradspace.runs.folder import Run
from gradspace.tensor_files import load_tensors
from gradspace.training.checkpoints import Checkpoints
from gradspace.training.loop import Trainer
from gradspace.training.start import train

TRAIN = [
    *("--data", "scenes", "--model", "vse++", "--objective", "circle/sigmoid-ms"),
    *("--set", "data.num_train=64", "--set", "data.num_dev=40", "--set", "data.num_test=40"),
    *("--set", "model.width=32", "--set", "model.word_width=16", "--set", "model.dropout=0.3"),
    *("--set", "training.epochs=3", "--set", "training.batch_size=16"),
    *("--set", "training.save_every=0", "--set", "training.track_every=3"),
    *("--set", "training.ema=0.9", "--chunk", "6"),
    *("--set", "objective.memory=400", "--set", "objective.warm_up=triplet"),
]


def start(*arguments: str | Path) -> Copy:
    return copied.start("train", *arguments)


def finish(process: Copy) -> str:
    output = "".join(process.communicate(timeout=300))
    assert process.returncode == 0, output
    return output


def steps_saved(run: Run) -> int:
    if not run.last.exists():
        return -1
    return int(load_tensors(run.last)[1]["progress"]["step"])


def wait_until_saved(run: Run, step: int, process: Copy | subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while steps_saved(run) < step and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def assert_same(run: Run, whole: Run) -> None:
    assert list(run.metrics()) == list(whole.metrics())
    for name in ("best", "last"):
        with safe_open(getattr(run, name), "pt") as a, safe_open(getattr(whole, name), "pt") as b:
            assert a.metadata() == b.metadata()
            assert set(a.keys()) == set(b.keys())
            for key in a.keys():  # noqa: SIM118
                assert torch.equal(a.get_tensor(key), b.get_tensor(key)), key


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nobody stopped: 60 steps in 3 epochs."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    os.environ.setdefault("GRADSPACE_CACHE", str(folder.parent / "cache"))
    finish(start(*TRAIN, "--out", folder))
    return Run(folder)


@pytest.mark.slow
def test_killed_again_and_again_at_random(whole: Run, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    chance = random.Random()
    process = start(*TRAIN, "--out", run.folder)
    for last in (3, 17, 38):
        wait_until_saved(run, last, process)
        time.sleep(chance.random() * 0.1)
        process.kill()
        process.communicate()
        process = start("--resume", run.folder)
    finish(process)
    assert_same(run, whole)


@pytest.mark.slow
def test_killed_before_the_first_checkpoint(whole: Run, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    process = start(*TRAIN, "--set", "training.save_every=1000", "--out", run.folder)
    while not run.metrics_file.exists() and process.poll() is None:
        time.sleep(0.005)
    process.kill()
    process.communicate()
    assert not run.last.exists()
    finish(start("--resume", run.folder))
    assert list(run.metrics()) == list(whole.metrics())


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop(how: signal.Signals, whole: Run, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    process = start(*TRAIN, "--out", run.folder)
    wait_until_saved(run, 4, process)
    process.send_signal(how)
    output = "".join(process.communicate(timeout=60))
    assert process.returncode == 130, output
    assert "--resume" in output
    assert "Traceback" not in output
    assert 4 <= steps_saved(run) < 60
    finish(start("--resume", run.folder))
    assert_same(run, whole)
    assert "done" in finish(start("--resume", run.folder)), "a finished run has nothing left to do"
    assert_same(run, whole)


def run_with_small_files(limit: int, *arguments: str) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    copied.run_command(*arguments)


@pytest.mark.slow
def test_a_full_disk_loses_nothing(whole: Run, tmp_path: Path) -> None:
    """Files may not grow beyond what a checkpoint needs: writing fails as on a full disk."""
    run = Run(tmp_path / "run")
    process = start(*TRAIN, "--out", run.folder)
    wait_until_saved(run, 8, process)
    process.kill()
    process.communicate()
    before = steps_saved(run)
    limit = run.last.stat().st_size // 2

    failed = Copy(run_with_small_files, limit, "train", "--resume", str(run.folder))
    _, errors = failed.communicate(timeout=60)
    assert failed.returncode == 1
    assert "File too large" in errors
    assert "Traceback" not in errors
    assert steps_saved(run) == before
    assert [path.name for path in run.folder.glob(".*")] == [".lock"]
    finish(start("--resume", run.folder))
    assert_same(run, whole)


@pytest.mark.slow
def test_a_truncated_checkpoint_is_explained(tmp_path: Path) -> None:
    run = train_small(tmp_path / "run", training={"epochs": 1})
    run.last.write_bytes(run.last.read_bytes()[:-100])
    output = "".join(start("--resume", run.folder).communicate(timeout=120))
    assert "last.safetensors is not a complete gradspace checkpoint" in output
    assert "Traceback" not in output


class KilledError(Exception):
    """As if the process had ended there."""


def fine_tuned(backbone: Path, learning_rate: float) -> dict[str, Any]:
    """The tables of a run of two frozen epochs and two of fine-tuning."""
    return {
        "model": {"backbone": str(backbone), "width": 16, "freeze_batch_norm": True},
        "objective": {"name": "nt-xent"},
        "training": {"epochs": 2},
        "finetune": {"epochs": 2, "learning_rate": learning_rate},
    }


def pretend(monkeypatch: pytest.MonkeyPatch, *rsums: float) -> None:
    """Have the next evaluations on dev find these."""
    report_on, waiting = evaluate.report_on, iter(rsums)

    def found(*given: Any) -> RetrievalReport:
        return replace(report_on(*given), rsum=next(waiting))

    monkeypatch.setattr("gradspace.training.loop.report_on", found)


@pytest.mark.slow
@pytest.mark.parametrize("ema", [None, 0.5])
def test_fine_tuning_goes_on_from_the_best_frozen_weights(
    ema: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = fine_tuned(tiny.resnet(tmp_path / "backbone"), 1e-30)
    tables["training"] |= {"ema": ema} if ema else {}
    pretend(monkeypatch, 5, 4, 3, 2)
    run = train_small(tmp_path / "run", **tables)
    best, record = load_tensors(run.best)
    assert record["epoch"] == 0
    last, _ = load_tensors(run.last)
    for name, tensor in best.items():
        torch.testing.assert_close(last[name], tensor)


@pytest.mark.slow
def test_weights_that_are_the_best_later_are_not_taken_for_the_best_frozen_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends in the second epoch of fine-tuning goes on from before the first."""
    tables = fine_tuned(tiny.resnet(tmp_path / "backbone"), 1e-3)
    pretend(monkeypatch, 5, 4, 6, 7)
    whole = train_small(tmp_path / "whole", **tables)
    assert load_tensors(whole.best)[1]["epoch"] == 3, "fine-tuning helps"
    pretend(monkeypatch, 5, 4, 6, 6, 7)
    finish_epoch = Trainer._finish_epoch

    def once_more(self: Trainer) -> None:
        finish_epoch(self)
        if self.state.epoch == 3:
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "are_due", False)
        patch.setattr(Trainer, "_finish_epoch", once_more)
        with pytest.raises(KilledError):
            train_small(tmp_path / "run", **tables)
    run = Run(tmp_path / "run")
    assert load_tensors(run.last)[1]["progress"]["epoch"] == 2
    train(resume=run.folder, device="cpu")
    assert list(run.metrics()) == list(whole.metrics())


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_falling_rate_goes_on_where_it_stopped(
    schedule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables: dict[str, Any] = {
        "training": {"schedule": schedule, "warm_up_share": 0.1, "accumulate": 2, "track_every": 1}
    }
    whole = train_small(tmp_path / "whole", **tables)
    train_on = Trainer.train_on

    def once_more(self: Trainer, batch: Any) -> Any:
        if self.state.step == 7:
            raise KilledError
        return train_on(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "are_due", property(lambda self: self.parts.state.step == 6))
        patch.setattr(Trainer, "train_on", once_more)
        with pytest.raises(KilledError):
            train_small(tmp_path / "run", **tables)
    run = Run(tmp_path / "run")
    assert load_tensors(run.last)[1]["progress"]["step"] == 6
    train(resume=run.folder, device="cpu")
    assert_same(run, whole)
    rates = [line["learning_rate"] for line in run.metrics() if line["kind"] == "step"]
    assert max(rates) <= 1e-3
    assert rates[-1] < 0.3 * max(rates)
