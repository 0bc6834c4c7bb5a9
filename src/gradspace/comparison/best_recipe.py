"""Recipes with the best points of a study, to be evaluated on test, once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from gradspace.comparison.builtin import FOLDER
from gradspace.comparison.grid import folder_name
from gradspace.comparison.recipe import Comparison
from gradspace.comparison.tried import Tried
from gradspace.files import write_atomically

SEEDS = 5
"""Smallest number of seeds, as the differences on test are the result."""


def save_best_recipes(
    folder: Path, study: Path, comparison: Comparison, best: Sequence[Tried]
) -> list[Path]:
    """Write a recipe for each dataset and model: `study` with a single value per parameter.

    They extend the study, and share its runs.
    """
    groups: dict[tuple[str, str], list[Tried]] = {}
    for one in best:
        groups.setdefault(one.search[:2], []).append(one)
    paths = []
    for (dataset, model), points in groups.items():
        only = {"model": [model], "objective": [one.search[2] for one in points]}
        if len(comparison.datasets) > 1:
            only["dataset"] = [dataset]
        tables: dict[str, Any] = {
            "extends": _reference(study, folder),
            "title": f"{comparison.title}: the best points",
            "seeds": max(comparison.seeds, SEEDS),
            "only": only,
            "objectives": {
                one.search[2]: {"parameters": {key: [value] for key, value in one.point}}
                for one in points
            },
        }
        which = f"-{folder_name(f'{dataset} {model}')}" if len(groups) > 1 else ""
        paths.append(folder / f"{study.stem}-best{which}.toml")
        with write_atomically(paths[-1]) as file:
            file.write(f"# Chosen on dev, to be evaluated on test.\n{tomli_w.dumps(tables)}")
    return paths


def _reference(recipe: Path, folder: Path) -> str:
    """Refer to a recipe from a folder: by its built-in name, or by its path from there."""
    if recipe.is_relative_to(FOLDER):
        return recipe.relative_to(FOLDER).with_suffix("").as_posix()
    return os.path.relpath(recipe.resolve(), folder.resolve())
