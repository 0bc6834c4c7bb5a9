"""Recipes of the papers' tables, and what the authors' code has for each dataset and round."""

from __future__ import annotations

from typing import Any

import pytest

from gradspace.comparison.builtin import find_comparison
from gradspace.comparison.grid import Cell, cells
from gradspace.comparison.recipe import load_comparison
from gradspace.models import model_info

ROUNDS = ["aoq-figure1", "aoq-steps", "aoq-draw", "aoq-table2", "flickr8k/aoq", "flickr8k/bfan"]


def cells_of(name: str) -> list[Cell]:
    path = find_comparison(name)
    return cells(load_comparison(path)[0], str(path))


@pytest.mark.parametrize("name", ROUNDS)
def test_second_rounds_of_a_model_have_one_schedule(name: str) -> None:
    """20 epochs, 15 of BFAN, at 2e-4, which becomes a tenth at epoch 10."""
    for cell in cells_of(name):
        if cell.first is None:
            continue
        training = cell.recipe.training
        epochs = 15 if cell.model == "BFAN" else 20
        assert training.epochs == epochs, cell
        assert [e for e in training.decay_epochs if e < epochs] == [10], cell
        assert training.learning_rate == 2e-4, cell


@pytest.mark.parametrize(
    ("name", "dataset", "expected"),
    [
        ("icr-table1", "Flickr30k", {"first_norm": False, "batch_norm": True}),
        ("icr-table1", "MS-COCO", {"first_norm": True, "batch_norm": True}),
        ("aoq-figure1", "MS-COCO", {"first_norm": True, "batch_norm": False}),
        ("aoq-table1", "MS-COCO", {"first_norm": True, "batch_norm": False}),
    ],
)
def test_vsrn_is_that_of_its_dataset(name: str, dataset: str, expected: dict[str, Any]) -> None:
    found = [
        model_info("vsrn").parameters | cell.recipe.model.parameters
        for cell in cells_of(name)
        if cell.recipe.model.name == "vsrn" and cell.dataset == dataset
    ]
    assert found
    assert all(expected.items() <= parameters.items() for parameters in found)


def test_negatives_of_the_supplement_are_drawn_in_two_ways() -> None:
    draws = {cell.objective: cell.recipe.offline for cell in cells_of("aoq-draw")}
    found = {name: offline.draw for name, offline in draws.items() if offline}
    assert found == {"adaptive-offline-quintuplet": "uniform", "adaptive, normal draw": "normal"}
