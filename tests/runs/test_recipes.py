"""Recipes: what is read, what is filled in, and what is refused by name."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

import gradspace as gs
from gradspace.runs.recipe import build_objective, load_recipe, make_recipe, recipe_toml
from gradspace.runs.toml_files import read_toml
from gradspace.training.schedule import learning_rate, stage_of, stages


def test_published_values_fill_in_what_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text('[model]\nname = "vse-infinity"\n[training]\nepochs = 3\n')
    recipe = load_recipe(path, ["objective.name=nca/linear", "objective.scale=5", "seed=7"])
    assert recipe.training.epochs == 3
    assert recipe.training.optimizer == "adamw"
    assert recipe.training.learning_rate == 5e-4
    assert recipe.objective.warm_up == "triplet", "its first epoch is over all negatives"
    assert recipe.seed == 7
    assert str(build_objective(recipe)) == "Goal(name='nca/linear', parameters={'scale': 5.0})"


def test_only_mined_objectives_are_warmed_up() -> None:
    for name, warm_up in {
        "triplet-hard": "triplet",
        "nt-xent": None,
        "nca/linear": "triplet",
    }.items():
        recipe = make_recipe({"model": {"name": "vse-infinity"}, "objective": {"name": name}})
        assert recipe.objective.warm_up == warm_up
    assert make_recipe({"model": {"name": "vse++"}}).objective.warm_up is None


@pytest.mark.parametrize(
    ("tables", "decay"),
    [
        ({}, 1e-2),
        ({"data": {"regions": "grid"}}, 1e-4),
        ({"model": {"backbone": "some/backbone"}}, 1e-4),
        ({"model": {"text_encoder": "some/bert"}}, 1e-4),
        ({"training": {"weight_decay": 0.5}}, 0.5),
    ],
)
def test_words_with_a_detectors_regions_have_the_optimisers_own_weight_decay(
    tables: dict[str, Any], decay: float
) -> None:
    """The published bi-GRU code leaves out what all its other parts say."""
    raw = {**tables, "model": {"name": "vse-infinity", **tables.get("model", {})}}
    assert make_recipe(raw).training.weight_decay == decay


def test_a_resolved_recipe_reads_as_itself(tmp_path: Path) -> None:
    recipe = make_recipe(
        {
            "data": {"source": "scenes", "num_train": 50},
            "model": {"name": "vse++", "width": 32, "backbone": "some/backbone"},
            "objective": {"name": "triplet-hard", "margin": 0.3, "warm_up": "triplet"},
            "finetune": {"epochs": 2},
        }
    )
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_toml(recipe))
    assert load_recipe(path) == recipe
    assert build_objective(recipe, warm_up=True).name == "triplet"


@pytest.mark.parametrize("given", [None, "none"])
def test_none_can_be_written(given: str | None, tmp_path: Path) -> None:
    """And is still there when the recipe of a run is read again."""
    raw: dict[str, Any] = {
        "model": {"name": "vse-infinity"},
        "objective": {"name": "constant/sigmoid", "margin": given, "warm_up": given},
        "training": {"clip": given},
    }
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_toml(make_recipe(raw)))
    for recipe in (make_recipe(raw), load_recipe(path)):
        assert build_objective(recipe) == gs.objective("constant/sigmoid", margin=None)
        assert recipe.objective.warm_up is None
        assert recipe.training.clip is None
    changes = ["objective.name=constant/linear", "objective.margin=none", "training.clip=none"]
    changed = load_recipe(None, changes)
    assert build_objective(changed) == gs.objective("constant/linear", margin=None)
    with pytest.raises(ValueError, match="margin of triplet should be a valid number, got 'none'"):
        gs.objective("triplet", margin="none")


BAD: list[tuple[str, dict[str, Any]]] = [
    ("unknown key training.epoch; did you mean 'epochs'", {"training": {"epoch": 3}}),
    ("unknown key trainig; did you mean 'training'", {"trainig": {}}),
    ("training.epochs is 0: use at least 1, or", {"training": {"epochs": 0}}),
    ("training.batch_size should be a valid integer", {"training": {"batch_size": "many"}}),
    ("unknown objective 'tripelt'; did you mean 'triplet'", {"objective": {"name": "tripelt"}}),
    ("triplet has no parameter 'scale'", {"objective": {"name": "triplet", "scale": 2}}),
    ("unknown model 'vse'; did you mean 'vse++'", {"model": {"name": "vse"}}),
    ("finetune needs model.backbone", {"finetune": {"epochs": 1}}),
    (
        "give data.features or model.backbone, not both",
        {"data": {"features": "f.npy"}, "model": {"backbone": "b"}},
    ),
    ("objective.memory should be greater than or equal to 0", {"objective": {"memory": -1}}),
    ("training.chunk should be greater than 0, got 0", {"training": {"chunk": 0}}),
    ("'float8'", {"training": {"precision": "float8"}}),
]


@pytest.mark.parametrize(("message", "raw"), BAD)
def test_what_is_wrong_is_named(message: str, raw: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        make_recipe(raw)
    assert "\n" not in str(caught.value)


def test_files_and_overrides_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist: expected a recipe"):
        load_recipe(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[data\n")
    with pytest.raises(ValueError, match="is a folder: expected a recipe"):
        read_toml(tmp_path)
    (tmp_path / "windows.toml").write_text("seed = 3\n", encoding="utf-8-sig")
    assert read_toml(tmp_path / "windows.toml") == {"seed": 3}
    with pytest.raises(ValueError, match="is not a valid TOML file"):
        load_recipe(tmp_path / "bad.toml")
    with pytest.raises(ValueError, match=re.escape("--set takes table.key=value, got 'epochs'")):
        load_recipe(None, ["epochs"])


# --- the schedule -------------------------------------------------------------------------------


def test_the_rate_decays_after_the_published_epochs() -> None:
    """VSE++: 2e-4 for 15 epochs, then 2e-5."""
    recipe = make_recipe({"model": {"name": "vse++"}})
    rates = [learning_rate(recipe, epoch, 1000, 50) for epoch in range(30)]
    assert rates == pytest.approx([2e-4] * 15 + [2e-5] * 15)


def test_two_steps_freeze_and_fine_tune() -> None:
    """VSE++: 30 epochs frozen, 15 more with the backbone at 2e-5, written out as a loop."""
    recipe = make_recipe({"model": {"backbone": "b"}, "finetune": {}})
    expected = []
    for epoch in range(45):
        if epoch < 15:
            expected.append((False, 2e-4))
        elif epoch < 30:
            expected.append((False, 2e-5))
        else:
            expected.append((True, 2e-5))
    epochs = range(stages(recipe)[-1].end)
    assert [stage_of(recipe, epoch).train_backbone for epoch in epochs] == [b for b, _ in expected]
    rates = [learning_rate(recipe, epoch, 10**6, 50) for epoch in epochs]
    assert rates == pytest.approx([rate for _, rate in expected])


def test_the_first_step_may_be_left_out() -> None:
    tables = {"model": {"backbone": "b"}, "training": {"epochs": 0}, "finetune": {"epochs": 2}}
    recipe = make_recipe(tables)
    assert [stage_of(recipe, epoch).train_backbone for epoch in (0, 1)] == [True, True]
    assert stages(recipe)[-1].end == 2


def test_decays_of_the_second_step_count_from_its_start() -> None:
    recipe = make_recipe(
        {
            "model": {"backbone": "b"},
            "training": {"epochs": 1, "decay_epochs": [], "learning_rate": 1.0},
            "finetune": {"epochs": 3, "learning_rate": 0.5, "decay_epochs": [2]},
        }
    )
    rates = [learning_rate(recipe, epoch, 0, 50) for epoch in range(4)]
    assert rates == pytest.approx([1.0, 0.5, 0.5, 0.05])


def test_warm_up_rises_to_the_full_rate() -> None:
    recipe = make_recipe({"training": {"warm_up_steps": 4, "learning_rate": 1.0}})
    rates = [learning_rate(recipe, 0, step, 50) for step in range(6)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])


def rates_of(training: dict[str, Any], finetune: dict[str, Any] | None = None) -> list[float]:
    """Compute the rate of every step, 5 in an epoch."""
    tables = {"model": {"backbone": "b"}, "training": {"learning_rate": 1.0, **training}}
    recipe = make_recipe({**tables, "finetune": finetune} if finetune else tables)
    return [learning_rate(recipe, step // 5, step, 5) for step in range(5 * stages(recipe)[-1].end)]


def test_linear_and_cosine_fall_to_zero_after_a_share_of_warm_up() -> None:
    """20 steps, of which a tenth rises."""
    common = {"epochs": 4, "warm_up_share": 0.1}
    rising = [1 / 2]
    linear = rates_of({**common, "schedule": "linear"})
    assert linear == pytest.approx(rising + [1 - max(step - 2, 0) / 18 for step in range(1, 20)])
    cosine = rates_of({**common, "schedule": "cosine"})
    half = [0.5 + 0.5 * math.cos(math.pi * max(step - 2, 0) / 18) for step in range(1, 20)]
    assert cosine == pytest.approx(rising + half)
    steps = rates_of({**common, "decay_epochs": [3]})
    assert steps == pytest.approx([0.5] + [1] * 14 + [0.1] * 5)
    assert rates_of({"epochs": 1, "schedule": "linear"}) == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])


def test_fine_tuning_has_its_own_warm_up_and_fall() -> None:
    found = rates_of(
        {"epochs": 2, "warm_up_share": 0.2, "schedule": "linear"},
        {"epochs": 1, "learning_rate": 10.0},
    )
    assert found[:10] == pytest.approx([1 / 2, 1, *(1 - (step - 2) / 8 for step in range(2, 10))])
    assert found[10:] == pytest.approx([10, 10, 7.5, 5, 2.5])


def test_what_falls_by_itself_has_no_decay_epochs() -> None:
    """Published schedules are left out; explicit ones are refused."""
    assert make_recipe({"training": {"schedule": "linear"}}).training.decay_epochs == ()
    with pytest.raises(
        ValueError, match=r"decay_epochs are for training.schedule = .steps.: cosine"
    ):
        make_recipe({"training": {"schedule": "cosine", "decay_epochs": [3]}})
    with pytest.raises(ValueError, match=r"warm_up_steps or training.warm_up_share, not both"):
        make_recipe({"training": {"warm_up_steps": 3, "warm_up_share": 0.1}})
