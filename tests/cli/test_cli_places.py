"""Where commands write: nothing is left of a failed start, and nothing is mixed with photos."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from commands import here, refused
from indexes.made_photos import write_photos
from small_runs import small_recipe, train_small

from gradspace.cli.demo import demo_comparison
from gradspace.comparison import worker
from gradspace.comparison.cell_runs import CellRuns
from gradspace.comparison.grid import Cell
from gradspace.files import only_writer
from gradspace.runs.folder import Run
from gradspace.training.start import train

ROOT = Path(__file__).parents[2]
SMALL = [
    f"--set={change}"
    for change in (
        *("data.num_train=64", "data.num_dev=40", "data.num_test=40", "model.width=32"),
        *("training.epochs=1", "training.batch_size=32"),
    )
]


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    "wrong",
    [
        ("--data", "nowhere"),
        ("--device", "tpu"),
        ("--init", "nowhere"),
        ("--offline-negatives", "nowhere"),
        ("--objective", "nt-xent", "--set", "objective.temperature=1e-40"),
    ],
)
def test_a_start_that_fails_leaves_nothing(
    wrong: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert here("train", *SMALL, *wrong).returncode == 1
    assert files(tmp_path) == []
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    assert here("train", *SMALL, *wrong, "--out", "runs/mine").returncode == 1
    assert files(tmp_path) == ["runs", "runs/mine"], "what was there before stays"
    (tmp_path / "runs" / "mine" / ".notes").touch()
    assert here("train", *SMALL, *wrong, "--out", "runs/mine").returncode == 1
    assert files(tmp_path) == ["runs", "runs/mine", "runs/mine/.notes"]


def test_the_corrected_command_has_the_name_that_was_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert here("train", *SMALL, "--init", "nowhere").returncode == 1
    assert here("train", *SMALL).returncode == 0
    assert Run(tmp_path / "runs" / "vse++-triplet-hard-0").best.exists()
    assert "contains a run already" in refused("train", "--out", "runs/vse++-triplet-hard-0")


def test_a_run_in_which_another_process_begins_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradspace.training.start.prepare_system", fails)
    recipe = small_recipe()
    (tmp_path / "run").mkdir()
    with only_writer(tmp_path / "run"), pytest.raises(ValueError, match="another process is writ"):
        train(recipe, out=tmp_path / "run", device="cpu")
    assert files(tmp_path / "run") == [".lock"]


def fails(*given: object) -> None:
    raise ValueError("no such backbone")


def test_a_comparison_that_failed_goes_on_with_a_corrected_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "prepare_system", fails)
    task = worker.Task(tmp_path / "a" / "seed-0", small_recipe(), "test", 1)
    with pytest.raises(ValueError, match="no such backbone"):
        worker.complete(task, torch.device("cpu"), None, {})  # type: ignore[arg-type]
    assert files(tmp_path) == []
    killed = Run(tmp_path / "runs" / "b" / "c" / "d" / "seed-0")
    killed.folder.mkdir(parents=True)
    killed.recipe_file.write_text("seed = 7\n")
    cell = Cell("b", "c", "d", 0, small_recipe())
    runs = CellRuns(demo_comparison(), tmp_path, 1)
    assert not runs.is_finished(cell), "what never began is trained"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_small(tmp_path_factory.mktemp("runs") / "a", training={"epochs": 1})


@pytest.mark.parametrize(
    "command",
    [
        ("train", *SMALL),
        ("index", "RUN"),
        ("data", "features", "scenes", "--backbone", "nowhere"),
        ("compare", "icr-table1", "--data", "scenes"),
        ("demo",),
    ],
)
def test_a_folder_with_other_things_in_it_is_refused(
    command: tuple[str | Path, ...], trained: Run, tmp_path: Path
) -> None:
    for name in ("a.jpg", "recipe.toml"):
        (tmp_path / name).touch()
    given = [trained.folder if part == "RUN" else part for part in command]
    told = refused(*given, "--out", tmp_path)
    assert told.startswith(
        f"gradspace: {tmp_path} has other things in it, a.jpg and 1 more: choose"
    )
    assert "a.jpg is a file" in refused(*given, "--out", tmp_path / "a.jpg")
    assert files(tmp_path) == ["a.jpg", "recipe.toml"]


@pytest.mark.parametrize("command", ["embed", "mine", "report"])
def test_a_folder_in_the_place_of_a_file_is_refused(
    command: str, trained: Run, tmp_path: Path
) -> None:
    told = refused(command, trained.folder, "--out", tmp_path)
    assert told == f"gradspace: {tmp_path} is a folder: give the name of a file"


def test_an_index_of_what_the_model_cannot_read_is_not_begun(trained: Run, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", range(2))
    told = refused("index", trained.folder, tmp_path / "photos", "--out", tmp_path / "index")
    assert "reads precomputed features, and there are only pictures" in told
    assert not (tmp_path / "index").exists()
