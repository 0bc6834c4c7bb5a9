"""The dataset of a run: as its recipe names it, or other data in its place."""

from __future__ import annotations

from pathlib import Path

from gradspace.data.dataset import Dataset
from gradspace.data.open import open_dataset
from gradspace.progress import Progress
from gradspace.runs.folder import open_run
from gradspace.runs.recipe import DataRecipe


def open_recipe(data: DataRecipe, progress: Progress | None = None) -> Dataset:
    """The dataset that a recipe names."""
    return open_dataset(
        data.source,
        images=data.images,
        features=data.features,
        skip_broken=data.skip_broken,
        progress=progress,
        **data.parameters,
    )


def run_data(run: Path, data: str | None, features: Path | None) -> DataRecipe:
    """The data that a run was trained on, or what is given in its place."""
    recipe = DataRecipe(source=data) if data else open_run(run).recipe().data
    return recipe.model_copy(update={"features": features}) if features else recipe


