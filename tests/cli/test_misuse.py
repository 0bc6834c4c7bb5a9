"""What is typed that a command does not take, and what it says of it."""

from __future__ import annotations

import pytest
from commands import here
from typer.testing import CliRunner

from gradspace.cli import app
from gradspace.models import models
from gradspace.objectives.registry import LOSSES, PAIR_WEIGHTS, TRIPLET_WEIGHTS
from gradspace.runs.recipe import Recipe, load_recipe


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("train --epochs 3", "training.epochs is a key of the recipe: --set training.epochs=3"),
        ("train --epoch=3", "--set training.epochs=3"),
        ("train --lr 1e-3", "--set training.learning_rate=1e-3"),
        ("train --batch-size 64", "--set training.batch_size=64"),
        ("train --decay-epochs 5", "--set 'training.decay_epochs=[5]'"),
        ("train --punctuation", "--set model.punctuation=true"),
        ("train --margin 0.3", "--set objective.margin=0.3"),
        ("train --width 64", "--set model.width=64"),
        ("train --temperature 0.1", "--set objective.temperature=0.1"),
        ("train --num-train 64", "--set data.num_train=64"),
        ("train --finetune.epochs 2", "--set finetune.epochs=2"),
        ("train --seeds 3", "Possible options: --seed"),
        ("train --nothing-like-it 3", "no such option: --nothing-like-it"),
        ("train --batch x", "invalid value for '--batch'"),
        ("compare r.toml --epochs 3", "--set training.epochs=3"),
        ("compare r.toml --model vsrn", "choose a part of the grid with --only model=vsrn"),
        (
            "evaluate run --batch-size 3",
            "gradspace train --set training.batch_size=3",
        ),
        ("index run --margin 3", "gradspace train --set objective.margin=3"),
        ("trian", "no such command 'trian'. Did you mean 'train'"),
        ("analyse cocoa", "Did you mean 'cocos'"),
        ("mine", "missing argument 'RUN'; see gradspace mine --help"),
    ],
)
def test_misuse_is_one_sentence(typed: str, told: str) -> None:
    done = here(*typed.split())
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("gradspace: ")
    assert told in line


@pytest.mark.parametrize("typed", ["", "analyse", "data"])
def test_help_is_shown_where_nothing_is_typed(typed: str) -> None:
    done = here(*typed.split())
    assert done.returncode == 2
    assert "Usage: gradspace" in done.stdout
    assert done.stderr == ""


def test_help_breaks_lines_where_the_terminal_does() -> None:
    shown = CliRunner().invoke(app, ["index", "--help"], env={"COLUMNS": "80"}).output
    assert "ones. It can be interrupted at any moment" in shown


def test_help_of_train_names_models_objectives_and_keys() -> None:
    shown = CliRunner().invoke(app, ["train", "--help"], env={"COLUMNS": "600"}).output
    names = (*(info.name for info in models()), *LOSSES, *TRIPLET_WEIGHTS, *PAIR_WEIGHTS)
    assert all(name in shown for name in names)
    for table, default in Recipe().model_dump().items():
        assert table in shown
        keys = default if isinstance(default, dict) else ()
        assert all(key in shown for key in keys)


def test_what_is_suggested_is_understood() -> None:
    """Lists and flags as TOML."""
    recipe = load_recipe(None, ["training.decay_epochs=[5]", "model.punctuation=true"])
    assert (recipe.training.decay_epochs, recipe.model.punctuation) == ((5,), True)
