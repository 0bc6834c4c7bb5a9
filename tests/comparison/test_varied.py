"""What a grid varies stays as it is: no row is trained as anything but what its name says."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradspace.report.compare import ComparisonPlan, make_plan

GRID = """
title = "Grid"
seeds = 2
[recipe.training]
epochs = 4
[datasets.scenes]
regions = { source = "scenes", num_train = 64 }
[datasets.more]
regions = { source = "scenes", num_train = 96, num_dev = 20 }
[models."batch 16"]
reads = "regions"
training = { batch_size = 16, epochs = 6 }
[models."batch 32"]
reads = "regions"
training = { batch_size = 32 }
[objectives.triplet]
[objectives.wide]
objective = { name = "triplet", margin = 0.4 }
training = { learning_rate = 1e-3 }
[objectives.mined]
after = "triplet"
objective = { name = "offline-triplet" }
"""
STUDY = """
title = "Rates"
seeds = 1
[datasets.scenes]
regions = { source = "scenes" }
[models.narrow]
reads = "regions"
model = { name = "vse++", width = 256 }
[models.wide]
reads = "regions"
model = { name = "vse++", width = 512 }
[objectives.triplet]
[[exceptions]]
objective = "triplet"
training = { learning_rate = 5e-4 }
[parameters]
"training.learning_rate" = [1e-4, 1e-2]
"data.num_train" = [64, 96]
"""


def plan(folder: Path, text: str, *overrides: str, only: tuple[str, ...] = ()) -> ComparisonPlan:
    path = folder / "grid.toml"
    path.write_text(text)
    return make_plan(path, overrides=overrides, only=only)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("objective.name=nt-xent", "objectives are the rows, each under its own name: choose with"),
        ("objective={}", "objectives are the rows"),
        (" seed = 1", "use --seeds, or --only seed="),
        ("data.source=photos", "use --data"),
        ("model.name=vsrn", "models go by their names"),
        (
            "objective.margin=0.3",
            "objective.margin distinguishes objective 'triplet' from 'wide'",
        ),
        (
            "training.batch_size=8",
            "distinguishes model 'batch 16' from 'batch 32': change it in the",
        ),
        ("data.num_train=32", "distinguishes dataset 'scenes, regions' from 'more, regions'"),
        ("offline.skip=3", "only some of the runs have"),
    ],
)
def test_what_a_grid_varies_is_not_set_for_all(override: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        plan(tmp_path, GRID, override)
    assert str(caught.value).startswith(f"--set {override}: ")


def test_what_its_rows_share_is_set_for_all(tmp_path: Path) -> None:
    """A schedule that comes with an objective of its own is no part of its name."""
    grid = plan(tmp_path, GRID, "training.clip=1", "training.learning_rate=1e-2").grid
    assert {cell.recipe.training.learning_rate for cell in grid} == {1e-2}
    part = ("model=batch 16", "objective=triplet", "dataset=scenes")
    for override in ("training.batch_size=8", "objective.margin=0.1", "data.num_train=32"):
        assert len(plan(tmp_path, GRID, override, only=part).grid) == 2


def test_a_first_round_keeps_its_weights(tmp_path: Path) -> None:
    going_on = GRID + "continues = true\n"
    with pytest.raises(ValueError, match="start from the weights of others of this comparison"):
        plan(tmp_path, going_on, "init=runs/first")


@pytest.mark.parametrize("small", [False, True])
def test_the_point_of_a_study_is_what_is_trained(small: bool, tmp_path: Path) -> None:
    """Whatever else sets its key: an exception, the inputs of a dataset, small models."""
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    made = make_plan(path, small=small)
    for cell in made.grid:
        rate, num_train = cell.recipe.training.learning_rate, cell.recipe.data.parameters
        assert cell.objective.endswith(f"rate={rate} num_train={num_train['num_train']}")
    assert len(made.grid) == (4 if small else 8)
    doubles = ["wide is the same as narrow here, and is left out"] if small else []
    assert [note for note in made.notes if "left out" in note] == doubles
    with pytest.raises(ValueError, match="learning_rate is a parameter of this study: change"):
        plan(tmp_path, STUDY, "training.learning_rate=1")


@pytest.mark.parametrize("key", ["seed", "objective.name", "model.name", "data.source"])
def test_names_are_no_parameters_of_a_study(key: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"parameters.{key}: "):
        plan(tmp_path, f'{STUDY}"{key}" = [1, 2]\n')


def test_a_seed_of_the_recipe_would_be_lost(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"recipe.seed: runs have the seeds 0, 1"):
        plan(tmp_path, GRID.replace("[recipe.training]", "[recipe]\nseed = 4\n[recipe.training]"))
