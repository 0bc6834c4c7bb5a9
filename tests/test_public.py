"""What a user of the library sees: the public names, how quickly they come, and the whole way."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from small_runs import DATA, MODEL, TRAINING, open_data, small_recipe

import gradspace as gs
from gradspace import cli
from gradspace.training import loop
from gradspace.training.stopping import Stopping

RECIPE = {"data": DATA, "model": MODEL, "training": {**TRAINING, "epochs": 1}}


def modules_after(code: str) -> set[str]:
    """The modules that are loaded after some code, in a new process."""
    command = [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_public_names() -> None:
    assert dir(gs) == sorted(dir(gs))
    assert set(dir(gs)) == {*gs.__all__, "__version__"}
    for name in gs.__all__:
        value = getattr(gs, name)
        assert callable(value)
        assert value.__module__.startswith("gradspace.")
        assert value.__doc__
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        gs.nonsense  # noqa: B018


def test_the_old_name_of_the_list_of_objectives_works_for_one_version() -> None:
    with pytest.warns(DeprecationWarning, match="gs.list_objectives"):
        assert gs.objectives() == gs.list_objectives()  # type: ignore[operator]
    assert gs.objectives.__name__ == "gradspace.objectives"


@pytest.mark.slow
def test_importing_loads_what_is_used() -> None:
    assert "torch" not in modules_after("import gradspace; import gradspace.cli")
    loaded = modules_after("import gradspace; gradspace.RetrievalLoss")
    assert "torch" in loaded
    assert not {"transformers", "matplotlib", "pyarrow"} & loaded
    training = modules_after("import gradspace.cli.training, gradspace.comparison.worker")
    assert not {"scipy", "transformers", "matplotlib"} & training
    data = modules_after("from gradspace.data.open import open_dataset")
    assert not [name for name in data if name.startswith(("gradspace.models", "gradspace.runs"))]


def test_help_is_that_of_the_commands() -> None:
    for name, (_, line) in cli.COMMANDS.items():
        shown = cli.load_command(name).help.strip().split("\n\n")[0].replace("\n", " ")
        assert shown == line


def test_train_load_evaluate_index_and_search(tmp_path: Path) -> None:
    run = gs.train(RECIPE, out=tmp_path / "run")
    found = gs.evaluate(run.folder)
    assert found.report == gs.evaluate(gs.load(run)).report
    assert found.to_dict()["rsum"] == found.report.rsum
    best = max(line["dev"]["rsum"] for line in run.metrics() if line["kind"] == "epoch")
    assert gs.evaluate(run.folder, split="dev").report.rsum == pytest.approx(best)

    model, test = gs.load(run), open_data(small_recipe()).splits["test"]
    assert test.features is not None
    features = torch.stack([torch.from_numpy(test.features.load(i)) for i in range(40)])
    scores = model.score(features, test.captions[:7])
    assert scores.shape == (40, 7)
    torch.testing.assert_close(
        scores, model.embed_images(features) @ model.embed_texts(test.captions[:7]).t()
    )
    made = gs.index(run.folder, out=tmp_path / "index")
    assert len(made) == 40 + len(test.captions)
    [first, *_] = gs.search(tmp_path / "index", test.captions[3], top=3)
    assert first.item.key == test.image_names[int(scores[:, 3].argmax())]

    mined = gs.mine(run.folder, top_texts=20, top_images=10)
    assert mined.path == run.folder / "lists.safetensors"
    assert mined.lists.texts_of_image.shape == (64, 20)


def test_a_model_that_scores_pairs(tmp_path: Path) -> None:
    run = gs.train({**RECIPE, "model": {**MODEL, "name": "bfan"}}, out=tmp_path / "run")
    model, test = gs.load(run), open_data(small_recipe()).splits["test"]
    assert test.features is not None
    features = torch.stack([torch.from_numpy(test.features.load(i)) for i in range(40)])
    expected = gs.evaluate(model).scores
    assert not isinstance(expected, gs.EmbeddingScores)
    whole = expected.tile(slice(0, 40), slice(0, 5))  # type: ignore[union-attr]
    torch.testing.assert_close(model.score(features, test.captions[:5]), whole)


@pytest.mark.slow
def test_compare(tmp_path: Path) -> None:
    only = ["objective=nt-xent", "model=VSE++"]
    small = [f"data.{key}={DATA[key]}" for key in ("num_train", "num_dev", "num_test")]
    done = gs.compare(
        "icr-table1",
        "scenes",
        seeds=1,
        only=only,
        overrides=[*small, "training.epochs=1", "model.width=16"],
        out=tmp_path,
        device="cpu",
    )
    assert [entry.objective for entry in done.runs.entries] == ["nt-xent"]
    assert done.paths[-1] == tmp_path / "icr-table1.html"
    assert done.to_dict()["failed"] == []


def test_stopped_training_raises_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(loop, "stop_signals", lambda: nullcontext(Stopping(requested=True)))
        with pytest.raises(KeyboardInterrupt, match="stopped after 1 step; resume with"):
            gs.train(RECIPE, out=tmp_path / "run")
    with pytest.raises(ValueError, match="--resume takes everything from the run"):
        gs.train(RECIPE, resume=tmp_path / "run")
    run = gs.train(resume=tmp_path / "run")
    assert run.best.exists()
