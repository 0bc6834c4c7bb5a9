"""The demo, on less data: trains, compares, counts, draws, and does not train twice."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console
from small_runs import small_recipe

from gradspace import demo
from gradspace.recipes import Recipe


def small(name: str) -> Recipe:
    return small_recipe(data={"num_train": 128}, objective={"name": name}, training={"epochs": 1})


def test_demo_compares_objectives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "demo_recipe", small)
    shown = []
    for _ in range(2):
        output = io.StringIO()
        demo.run_demo(tmp_path, Console(file=output, width=80))
        shown.append(output.getvalue())
    for expected in (*demo.OBJECTIVES, "C^q", "image → text", "rsum", "retrieved.png"):
        assert expected in shown[0].replace("\n", "")
    assert "epoch   1/1" in shown[0]
    assert "epoch   1/1" not in shown[1], "what is trained is kept"
    with Image.open(tmp_path / "retrieved.png") as picture:
        assert picture.height > 800


def test_runs_of_another_version_are_not_mixed_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "demo_recipe", small)
    demo.run_demo(tmp_path, Console(file=io.StringIO()))
    monkeypatch.setattr(demo, "demo_recipe", lambda name: small_recipe(objective={"name": name}))
    with pytest.raises(ValueError, match="is a run of another version: delete"):
        demo.run_demo(tmp_path, Console(file=io.StringIO()))
