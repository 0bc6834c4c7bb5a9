"""Trackers: every measurement of a training, in TensorBoard, W&B, MLflow and users' functions."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from small_runs import DATA, MODEL, TRAINING, small_recipe, train_small

from gradspace.runs.folder import Run
from gradspace.runs.recipe import load_recipe
from gradspace.training.start import train
from gradspace.training.trackers import TRACKERS, Track, tracker


def rsum_of(run: Run) -> float:
    (epoch,) = (line for line in run.metrics() if line["kind"] == "epoch")
    return float(epoch["dev"]["rsum"])


def train_one_epoch(folder: Path, *trackers: str) -> Run:
    return train_small(folder, training={"epochs": 1, "trackers": trackers})


def test_tensorboard_gets_the_same_numbers(tmp_path: Path) -> None:
    run = train_one_epoch(tmp_path / "run", "tensorboard")
    (events,) = run.folder.glob("events.out.tfevents.*")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(events))
    read.Reload()
    (rsum,) = read.Scalars("dev/rsum")
    assert rsum.value == pytest.approx(rsum_of(run))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the package's own
def test_wandb_gets_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MODE": "offline", "SILENT": "true", "CACHE_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    run = train_one_epoch(tmp_path / "run", "wandb")
    (file,) = run.folder.glob("wandb/offline-run-*/*.wandb")
    session = json.loads((run.folder / "trackers.json").read_text())["wandb"]
    assert session in file.name
    logged = dict(wandb_history(file))
    assert logged["dev/rsum"] == pytest.approx(rsum_of(run))


def wandb_history(file: Path) -> Iterator[tuple[str, Any]]:
    """Every logged number of an offline session."""
    from wandb.proto import wandb_internal_pb2

    for data in wandb_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        for item in record.history.item:
            yield item.key or "/".join(item.nested_key), json.loads(item.value_json)


def wandb_records(log: bytes, block: int = 1 << 15, head: int = 7) -> Iterator[bytes]:
    """Records of a LevelDB log, whole or in parts: checksum, length, kind of part, data."""
    place, record = head, b""
    while place + head <= len(log):
        if block - place % block < head:
            place += block - place % block
            continue
        length, kind = int.from_bytes(log[place + 4 : place + 6], "little"), log[place + 6]
        record += log[place + head : place + head + length]
        place += head + length
        if kind in (1, 4):  # the whole, or the last part
            yield record
            record = b""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the package's own
def test_mlflow_gets_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # others need a server or a database
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    run = train_one_epoch(tmp_path / "run", "mlflow")
    session = json.loads((run.folder / "trackers.json").read_text())["mlflow"]
    logged = mlflow.get_run(session).data
    assert logged.metrics["dev/rsum"] == pytest.approx(rsum_of(run))
    assert logged.params["model.width"] == "32"


def test_a_function_gets_what_metrics_has(tmp_path: Path) -> None:
    got: list[tuple[int, Mapping[str, float]]] = []
    run = train(
        small_recipe(training={"epochs": 1}),
        out=tmp_path / "run",
        track=lambda numbers, step: got.append((step, numbers)),
    )
    lines = list(run.metrics())
    assert [step for step, _ in got] == [line["step"] for line in lines]
    assert got[0][1]["loss"] == lines[0]["loss"]
    assert got[-1][1]["dev/rsum"] == rsum_of(run)


def test_a_tracker_of_ones_own_is_closed_when_training_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradspace.training.trackers.TRACKERS", dict(TRACKERS))
    told: list[str] = []

    @tracker("diary")
    @contextmanager
    def diary(run: Run) -> Iterator[Track]:
        told.append(run.folder.name)
        yield lambda numbers, step: told.append(f"step {step}")
        told.append("closed")

    train_one_epoch(tmp_path / "run", "diary")
    assert told[:2] == ["run", "step 1"]
    assert told[-1] == "closed"


def test_a_tracker_that_fails_does_not_end_the_training(tmp_path: Path) -> None:
    tried: list[int] = []

    def fail(numbers: Mapping[str, float], step: int) -> None:
        tried.append(step)
        raise OSError("the server is down")

    with pytest.warns(UserWarning, match=r"left out from now on \(the server is down\)"):
        run = train(small_recipe(training={"epochs": 1}), out=tmp_path / "run", track=fail)
    assert len(tried) == 1
    assert rsum_of(run) > 0


def test_a_tracker_that_cannot_start_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with pytest.raises(ValueError, match="mlflow cannot track this run: The filesystem tracking"):
        train(small_recipe(training={"trackers": ["mlflow"]}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_refused_before_training(tmp_path: Path) -> None:
    tables = {"data": DATA, "model": MODEL, "training": {**TRAINING, "trackers": ["tensorbord"]}}
    with pytest.raises(ValueError, match=r"unknown tracker 'tensorbord'; use one of mlflow, tens"):
        train(tables, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        ValueError, match=r"needs Weights & Biases: .*pip install 'gradspace\[wandb"
    ):
        train_one_epoch(tmp_path / "run", "wandb")


@pytest.mark.parametrize(("old", "trackers"), [("true", ("tensorboard",)), ("false", ())])
def test_the_key_of_earlier_runs_is_read(
    old: str, trackers: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "recipe.toml").write_text(f"[training]\ntensorboard = {old}\n")
    assert load_recipe(tmp_path / "recipe.toml").training.trackers == trackers
