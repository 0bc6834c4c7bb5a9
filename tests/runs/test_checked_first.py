"""Evaluation refuses what it cannot do before it embeds anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import train_small

import gradspace as gs
from gradspace.runs import evaluate as evaluation
from gradspace.runs import model


def fail(*_: object, **__: object) -> None:
    raise AssertionError("the work has begun")


def test_eccv_is_refused_before_anything_is_embedded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train_small(tmp_path / "run", training={"epochs": 1})
    monkeypatch.setattr(evaluation, "represent_split", fail)
    with pytest.raises(ValueError, match="--eccv needs COCO's caption ids"):
        gs.evaluate(run.folder, eccv=True)


def test_missing_data_is_refused_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model, "load_system", fail)
    with pytest.raises(ValueError, match=r"runs/first does not exist: expected the folder of a"):
        gs.evaluate("runs/first")
    with pytest.raises(ValueError, match=r"some/name does not exist as a folder; .* give one as"):
        gs.evaluate("some/name")
    with pytest.raises(ValueError, match="photos does not exist"):
        gs.index("some/name", "photos", out=tmp_path / "index")
