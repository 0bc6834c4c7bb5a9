"""Dataset of a run: the one that its recipe names, or other data in its place."""

from __future__ import annotations

from pathlib import Path

from gradspace.data.dataset import Dataset, Split
from gradspace.data.open import open_dataset
from gradspace.data.pair_ids import PairIds, ids_by_image, ids_by_text
from gradspace.plugins import not_repeated
from gradspace.progress import Progress, Show, silently
from gradspace.runs.folder import open_run
from gradspace.runs.recipe import Recipe
from gradspace.runs.recipe_tables import DataRecipe
from gradspace.runs.system import is_pretrained


def open_recipe(
    data: DataRecipe, progress: Progress | None = None, *, run: Path | None = None
) -> Dataset:
    """Open the dataset that a recipe names; `run` is the folder of a run trained on it, if any.

    If it cannot be opened, a plug-in may be missing; the run tells which one reads it.
    """
    try:
        return open_dataset(
            data.source,
            images=data.images,
            features=data.features,
            skip_broken=data.skip_broken,
            progress=progress,
            **data.parameters,
        )
    except ValueError as error:
        if run and (missing := not_repeated(run)):
            raise ValueError(f"{error}{missing}") from error
        raise


def recipe_ids(recipe: Recipe, split: Split) -> PairIds | None:
    """Match positives as the recipe's objective does; None if they are an image's own captions."""
    if recipe.objective.positives != "text":
        return None
    return ids_by_text(ids_by_image(split).positives(), split.captions)


def run_data(
    run: Path, data: str | Path | None = None, features: str | Path | None = None
) -> DataRecipe:
    """Find the data that a run was trained on, or use other data instead."""
    if data is None and is_pretrained(run):
        if run.exists():
            found = "is a pretrained model, which has no dataset of its own"
        else:
            found = "does not exist as a folder; if it is a model on the hub, it has no dataset"
        raise ValueError(f"{run} {found}: give one as --data")
    recipe = DataRecipe(source=str(data)) if data else open_run(run).recipe().data
    return recipe.model_copy(update={"features": Path(features)}) if features else recipe


def run_split(
    run: Path,
    name: str,
    data: str | Path | None = None,
    features: str | Path | None = None,
    show: Show = silently,
) -> Split:
    """Open one split of the data of a run, or of other data."""
    with show("reading data") as progress:
        return open_recipe(run_data(run, data, features), progress, run=run).split(name)
