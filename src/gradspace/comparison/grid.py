"""Cells of a comparison: one training recipe for every dataset, model, objective and seed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TypeVar

from gradspace.comparison.recipe import Comparison, ModelChoice, Only, Tables, lay_over
from gradspace.comparison.study import StudyPoint, point_label
from gradspace.models import model_info
from gradspace.runs.recipe import Recipe, build_objective, make_recipe
from gradspace.runs.toml_files import apply_override, set_key

Labelled = TypeVar("Labelled")

SMALL_SHARE = 7 / 30
"""Share of the epochs in a small comparison: the published 30 become 7."""
SMALL = (
    "small: models of width 128, 7 of 30 epochs, a quarter of the batch, learning rate 0.001, a "
    "first epoch of nt-xent for objectives of the hardest negative"
)
SMALL_MODEL = {"width": 128, "word_width": 64}
SMALL_SCENES = {"num_train": 2000, "num_dev": 200, "num_test": 500}
MAX_SMALL_SEEDS = 3
MAX_NAME = 200
"""Longest name of a folder in characters; file systems allow 255 bytes."""
OF_PRETRAINED = (
    "backbone",
    "text_encoder",
    "image_size",
    "whole_images",
    "weights",
    "word_vectors",
)
"""Keys of a model that concern pretrained parts, or their input."""


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    dataset: str
    model: str
    objective: str
    seed: int
    recipe: Recipe
    point: StudyPoint = ()
    """Point of a study."""
    first: Cell | None = None
    """First round, trained before this cell, whose best model mines its negatives."""
    continues: bool = False
    """Whether it starts from the weights of that model."""

    @property
    def labels(self) -> tuple[str, str, str, int]:
        return self.dataset, self.model, self.objective, self.seed

    @property
    def search(self) -> tuple[str, str, str]:
        """Dataset, model and objective, for which points are chosen separately."""
        objective = self.objective.removesuffix(point_label(self.point)).rstrip()
        return self.dataset, self.model, objective

    def folder(self, runs: Path) -> Path:
        *labels, seed = self.labels
        return runs.joinpath(*map(folder_name, map(str, labels)), f"seed-{seed}")

    def recipe_in(self, runs: Path) -> Recipe:
        """Return the recipe, with the folder of the first round that it starts from."""
        if self.first is None or not self.continues:
            return self.recipe
        return self.recipe.model_copy(update={"init": self.first.folder(runs)})

    def __str__(self) -> str:
        return f"{self.dataset}, {self.model}, {self.objective}, seed {self.seed}"


def folder_name(label: str) -> str:
    """Make a folder name without characters special to paths or shells; digests end long ones."""
    name = re.sub(r"[^\w+.=-]+", "-", label).strip("-.") or "-"
    if len(name) <= MAX_NAME:
        return name
    return f"{name[:MAX_NAME]}-{hashlib.sha256(label.encode()).hexdigest()[:12]}"


def cells(
    comparison: Comparison, name: str, *, overrides: Sequence[str] = (), small: bool = False
) -> list[Cell]:
    """List every run of the grid, seed by seed, so that tables are complete as soon as possible."""
    make = CellMaker(comparison, name, tuple(overrides), small)
    wanted = comparison.only.seed or range(comparison.seeds)
    grid = [
        make.cell(dataset, model, objective, seed)
        for seed in range(comparison.seeds)
        if seed in wanted
        for dataset, model, objective in _combinations(comparison)
    ]
    if not grid:
        raise ValueError(
            f"no run is left of {name}: see `only` and --only, the number of seeds, and whether "
            "the datasets have what the models read"
        )
    _check_folders(grid)
    return grid


def _check_folders(grid: Sequence[Cell]) -> None:
    """Check that every run has a separate folder."""
    owners: dict[Path, Cell] = {}
    for cell in with_first_rounds(grid):
        owner = owners.setdefault(cell.folder(Path()), cell)
        if owner.labels != cell.labels:
            raise ValueError(
                f"two runs would have the same folder, {cell.folder(Path('runs'))}: ({owner}) and "
                f"({cell}); give them labels that differ in letters, digits or one of _ + . = -"
            )


def with_first_rounds(grid: Sequence[Cell]) -> list[Cell]:
    """List the cells of a table, each after the first round it needs, which may be in no table."""
    found: dict[tuple[str, str, str, int], Cell] = {}
    for cell in grid:
        for one in (cell.first, cell):
            if one is not None:
                found.setdefault(one.labels, one)
    return list(found.values())


@dataclass(frozen=True)
class CellMaker:
    """Combines all parts of a run into its recipe."""

    comparison: Comparison
    name: str
    overrides: tuple[str, ...]
    small: bool

    def seeds(self, dataset: str, model: str, objective: str, point: StudyPoint) -> list[Cell]:
        """Make all runs of a point of a study."""
        tables = _objective(self.comparison, objective, point)
        return [self.cell(dataset, model, tables, s) for s in range(self.comparison.seeds)]

    def cell(self, dataset: str, model: str, objective: _Objective, seed: int) -> Cell:
        """Make one run."""
        given, tables = self.comparison, objective.tables
        choice = given.objectives[objective.name]
        first = self._first(dataset, model, objective, seed)
        continues = choice.continues or given.models[model].after is not None
        if choice.after is not None:
            tables = lay_over({"offline": {}} if choice.mines else {}, tables)
        raw = lay_over(lay_over(given.recipe, given.models[model].tables), tables)
        if "offline" not in tables:
            raw.pop("offline", None)  # which second rounds share
        for exception in given.exceptions:
            if exception.concerns(dataset, model, objective.name, choice.after):
                raw = lay_over(raw, exception.tables)
        inputs = given.datasets[dataset][given.models[model].reads]
        raw = {**raw, "seed": seed, "data": lay_over(raw.get("data", {}), inputs)}
        label, point = objective.label, objective.point
        where = f"{self.name}: {dataset}, {model}, {label}"
        if self.small:
            raw = _smaller(raw, where, continues=continues)
        for key, value in point:  # after all other tables, since the run is named after the point
            set_key(raw, key, value)
        for override in self.overrides:
            apply_override(raw, override)
        recipe = make_recipe(raw, where)
        return Cell(dataset, model, label, seed, recipe, point, first, continues)

    def _first(self, dataset: str, model: str, objective: _Objective, seed: int) -> Cell | None:
        """Make the cell that must be trained before a run: another objective, or another model."""
        given = self.comparison
        of_objective, of_model = given.objectives[objective.name].after, given.models[model].after
        if of_objective is not None and of_model is not None:
            raise ValueError(
                f"{self.name}: {objective.name} comes after {of_objective} and {model} after "
                f"{of_model}: a run can come after one other only"
            )
        if of_objective is not None:
            return self.cell(dataset, model, _objective(given, of_objective), seed)
        return None if of_model is None else self.cell(dataset, of_model, objective, seed)


def on_data(comparison: Comparison, source: str) -> tuple[Comparison, list[str]]:
    """Adapt the grid to the data at hand, and describe the differences.

    Models lose their pretrained parts and read what the dataset has; those that differed only in
    these are merged.
    """
    label = source if source == "scenes" else Path(source).name
    models: dict[str, ModelChoice] = {}
    notes = []
    for name, model in chosen(comparison.models, comparison.only.model).items():
        kept = {key: value for key, value in model.model.items() if key not in OF_PRETRAINED}
        begun = comparison.models[model.after] if model.after else model  # nothing to fine-tune
        training = begun.training
        if begun.finetune and training.get("epochs") == 0:  # the backbone was all it trained
            training = {**training, **begun.finetune}
        plain = {"model": kept, "training": training, "finetune": None, "reads": "features"}
        bare = begun.model_copy(update=plain)
        same = next((n for n, other in models.items() if other == bare), None)
        lost = [str(model.model[key]) for key in ("backbone", "text_encoder") if key in model.model]
        if same is not None:
            notes.append(f"{name} is the same as {same} here, and is left out")
            continue
        if lost:
            notes.append(f"{name} runs without its pretrained {' and '.join(lost)}")
        models[name] = bare
    changed = {
        "datasets": {label: {"features": {"source": source}}},
        "models": models,
        "exceptions": tuple(e for e in comparison.exceptions if e.dataset is None),
        "only": Only(objective=comparison.only.objective, seed=comparison.only.seed),
        "needs": {},
        "folds": 1,
    }
    return comparison.model_copy(update=changed), notes


@dataclass(frozen=True)
class _Objective:
    """An objective of the grid, or a point of its study."""

    name: str
    point: StudyPoint
    tables: Tables

    @property
    def label(self) -> str:
        return f"{self.name} {point_label(self.point)}".strip()


def objective_tables(comparison: Comparison, name: str) -> Tables:
    """Return the tables of a label, which is the objective's name unless they give another."""
    return lay_over({"objective": {"name": name}}, comparison.objectives[name].tables)


def _objective(comparison: Comparison, name: str, point: StudyPoint = ()) -> _Objective:
    tables = objective_tables(comparison, name)
    for key, value in point:
        set_key(tables, key, value)
    return _Objective(name, point, tables)


def _combinations(comparison: Comparison) -> Iterator[tuple[str, str, _Objective]]:
    only = comparison.only
    datasets = chosen(comparison.datasets, only.dataset)
    for dataset, model in product(datasets, chosen(comparison.models, only.model)):
        if comparison.models[model].reads in comparison.datasets[dataset]:
            for objective in _objectives(comparison):
                yield dataset, model, objective


def _objectives(comparison: Comparison) -> Iterator[_Objective]:
    for name in chosen(comparison.objectives, comparison.only.objective):
        for point in comparison.study(name).start():
            yield _objective(comparison, name, point)


def chosen(choices: Mapping[str, Labelled], labels: Sequence[str]) -> dict[str, Labelled]:
    """Select the part of an axis that `only` names; all of it if it names nothing."""
    return {name: choice for name, choice in choices.items() if not labels or name in labels}


def _smaller(raw: Tables, where: str, *, continues: bool) -> Tables:
    """Reduce a recipe to minutes on two cores: fewer epochs, narrower models, smaller batches.

    In few steps the hardest negatives alone do not train a model from random weights, so that
    objectives of these alone are preceded by an epoch of another one.
    """
    full = make_recipe(raw, where)
    training = full.training
    known = model_info(full.model.name).parameters
    needs_warm_up = build_objective(full).mined and not continues
    return lay_over(
        raw,
        {
            "data": SMALL_SCENES if full.data.source == "scenes" else {},
            "model": {key: value for key, value in SMALL_MODEL.items() if key in known},
            "objective": {"warm_up": "nt-xent"} if needs_warm_up else {},
            "training": {
                "epochs": _share(training.epochs),
                "decay_epochs": sorted({_share(epoch) for epoch in training.decay_epochs}),
                "batch_size": max(2, training.batch_size // 4),
                "learning_rate": 1e-3,
            },
        },
    )


def _share(epochs: int) -> int:
    return max(1, round(epochs * SMALL_SHARE))
