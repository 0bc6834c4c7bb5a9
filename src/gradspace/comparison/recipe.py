"""Comparison recipes: datasets x models x objectives x seeds, as TOML checked key by key.

    title = "ICR Table 1"
    seeds = 5
    [datasets.Flickr30k]
    images = { source = "data/flickr30k/dataset_flickr30k.json" }
    [models."VSE++"]
    reads = "images"
    model = { name = "vse++", backbone = "microsoft/resnet-50" }
    [objectives.triplet]
    [objectives.triplet-hard]

Every choice is a part of a training recipe; a cell of the grid combines its parts into one.
`gradspace compare --list` names those that come with gradspace.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from gradspace.analysis.cocos import Convention, Counting
from gradspace.comparison.builtin import builtin_file
from gradspace.comparison.study import LIST, RANGE, AxisValues, Range, Study
from gradspace.parameters import NonNegative, suggestion
from gradspace.runs.numbers import RECALLS, check_metric
from gradspace.runs.recipe_tables import RecipeTable
from gradspace.runs.toml_files import read_toml

Tables = dict[str, Any]
"""Part of a training recipe: tables by name."""
PARTS = ("data", "model", "objective", "training", "finetune", "offline")
NAMED = {
    "seed": "seeds are an axis of the grid: use --seeds, or --only seed=NUMBER",
    "data.source": "datasets go by their names in [datasets]: use --data, or add one to the recipe",
    "model.name": "models go by their names in [models]: use --only model=LABEL, or add one",
    "objective.name": (
        "objectives are the rows, each under its own name: choose with --only objective=LABEL, or "
        "add one to the recipe"
    ),
}
"""Keys of the training recipe that are an axis of every grid, and what to use instead of them."""


class Choice(RecipeTable):
    """One value of an axis of the grid: tables that become part of the training recipe."""

    model: Tables = Field(default_factory=dict)
    objective: Tables = Field(default_factory=dict)
    training: Tables = Field(default_factory=dict)
    finetune: Tables | None = None

    @property
    def tables(self) -> Tables:
        filled = {name: getattr(self, name, None) for name in PARTS}
        return {name: table for name, table in filled.items() if table}


class ModelChoice(Choice):
    reads: str
    """Kind of input of the dataset that it is trained on."""
    after: str | None = None
    """Model whose run, of the same objective and seed, it starts from."""


class ObjectiveChoice(Choice):
    parameters: dict[str, AxisValues] = Field(default_factory=dict)
    """Key of the training recipe -> values to try with this objective."""
    offline: Tables = Field(default_factory=dict)
    after: str | None = None
    """Objective of a first round, whose best model mines the negatives of this one."""
    continues: bool = False
    """Whether it starts from the weights of that model."""
    mines: bool = True
    """Whether its second round mines negatives; if not, it is the control: just more training."""

    @model_validator(mode="after")
    def _continues_something(self) -> ObjectiveChoice:
        if self.continues and self.after is None:
            raise ValueError("continues needs after, the first round to start from")
        return self


class Exceptional(RecipeTable):
    """Tables of some cells only: those of a dataset, a model, an objective, or a combination."""

    dataset: str | None = None
    model: str | None = None
    objective: str | None = None
    after: str | None = None
    """Objective of a first round, which selects all its second rounds."""
    training: Tables = Field(default_factory=dict)
    recipe: Tables = Field(default_factory=dict)
    """Other tables of the training recipe, by name."""

    @property
    def tables(self) -> Tables:
        return lay_over({"training": self.training}, self.recipe)

    def concerns(self, dataset: str, model: str, objective: str, after: str | None) -> bool:
        wanted = (self.dataset, self.model, self.objective, self.after)
        cell = (dataset, model, objective, after)
        return all(label in (None, found) for label, found in zip(wanted, cell, strict=True))


class CocosTable(RecipeTable):
    """Definition of a contribution to the gradient."""

    epsilon: NonNegative = Counting.epsilon
    convention: Convention = Counting.convention

    @property
    def counting(self) -> Counting:
        return Counting(self.epsilon, self.convention)


class Only(RecipeTable):
    """Selected part of the grid; axes that are not given are complete."""

    dataset: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    objective: tuple[str, ...] = ()
    seed: tuple[NonNegativeInt, ...] = ()


class Comparison(RecipeTable):
    """Definition of a table: the grid, and how it is shown."""

    title: str
    paper: str = ""
    published: str | None = None
    """CSV with the numbers of the paper, as a path relative to this recipe."""
    seeds: PositiveInt = 3
    layout: Literal["rows", "grid"] = "rows"
    """One row per objective, or triplet weights x pair weights."""
    metrics: tuple[str, ...] = (*RECALLS, "rsum")
    folds: PositiveInt = 1
    cocos: CocosTable = CocosTable()
    """Definition of the counts C^q, C^0 and so on."""
    needs: dict[str, str] = Field(default_factory=dict)
    """Files that must exist, each with a sentence on where they come from."""
    recipe: Tables = Field(default_factory=dict)
    """Tables that all runs share."""
    datasets: Annotated[dict[str, dict[str, Tables]], Field(min_length=1)]
    """Label -> kind of input -> `data` table."""
    models: Annotated[dict[str, ModelChoice], Field(min_length=1)]
    objectives: Annotated[dict[str, ObjectiveChoice], Field(min_length=1)]
    exceptions: tuple[Exceptional, ...] = ()
    only: Only = Only()
    parameters: dict[str, AxisValues] = Field(default_factory=dict)
    """Key of the training recipe -> values to try: a study (see study.py)."""
    sample: PositiveInt | None = None
    """Number of points of every objective, spread evenly over its parameters."""
    trials: PositiveInt | None = None
    """Total number of points of every objective; later ones depend on the results so far."""

    @model_validator(mode="after")
    def _labels_exist(self) -> Comparison:
        for metric in self.metrics:
            check_metric(metric)
        if "seed" in self.recipe:
            raise ValueError("recipe.seed: runs have the seeds 0, 1 ... to seeds - 1")
        for axis, labels in self._axes.items():
            for label in getattr(self.only, axis):
                _known(f"only.{axis}", str(label), labels)
            for exception in self.exceptions:
                if (label := getattr(exception, axis, None)) is not None:
                    _known(f"exceptions.{axis}", label, labels)
        for exception in self.exceptions:
            if exception.after is not None:
                _known("exceptions.after", exception.after, self.objectives)
        for label, choice in self.objectives.items():
            if choice.after is not None:
                _known(f"objectives.{label}.after", choice.after, self.objectives)
                if self.objectives[choice.after].after is not None:
                    raise ValueError(f"objectives.{label} comes after a second round: only one may")
        for label, model in self.models.items():
            if model.after is not None:
                _known(f"models.{label}.after", model.after, self.models)
                if self.models[model.after].after is not None:
                    raise ValueError(f"models.{label} comes after a second step: only one may")
            if not any(model.reads in inputs for inputs in self.datasets.values()):
                raise ValueError(f"models.{label} reads {model.reads!r}, which no dataset has")
        return self

    @model_validator(mode="after")
    def _studies_make_sense(self) -> Comparison:
        for name in self.objectives:
            study = self.study(name)
            for key in study.axes:
                for named in (named for named in NAMED if overlap(key, named)):
                    raise ValueError(f"parameters.{key}: {NAMED[named]}")
            study.check()
        if (self.sample or self.trials) and not any(self.study(n).axes for n in self.objectives):
            raise ValueError("sample and trials need parameters, and there are none")
        return self

    def study(self, objective: str) -> Study:
        """Return the study of an objective; its own values override those of all objectives."""
        axes = {**self.parameters, **self.objectives[objective].parameters}
        return Study(axes, self.sample, self.trials)

    @property
    def logarithmic(self) -> set[str]:
        """Keys of ranges that are sampled logarithmically."""
        axes = [axis for name in self.objectives for axis in self.study(name).axes.items()]
        return {key for key, values in axes if isinstance(values, Range) and values.log}

    def part(self, wanted: Sequence[str]) -> Comparison:
        """Select the part of the grid given as `model=VSRN` and the like."""
        found: dict[str, list[str]] = {}
        for one in wanted:
            axis, equals, label = one.partition("=")
            if axis not in self._axes or not equals:
                axes = ", ".join(self._axes)
                raise ValueError(f"--only takes AXIS=LABEL with an axis of {axes}, got {one!r}")
            _known(f"--only {axis}", label, self._axes[axis])
            found.setdefault(axis, []).append(label)
        only = Only.model_validate({**self.only.model_dump(), **found})
        if self.trials and only.seed:
            raise ValueError(
                "trials are chosen by the mean over all seeds: leave only.seed out, or divide the "
                "work by --only objective=LABEL"
            )
        return self.model_copy(update={"only": only})

    @property
    def _axes(self) -> dict[str, Collection[str]]:
        """Labels of each axis, by which a part of the grid can be selected."""
        return {
            "dataset": self.datasets,
            "model": self.models,
            "objective": self.objectives,
            "seed": [str(seed) for seed in range(self.seeds)],
        }

    @property
    def split(self) -> str:
        """Split for evaluation: parameters are chosen on dev, so that test stays unseen."""
        return "dev" if self.is_study else "test"

    @property
    def is_study(self) -> bool:
        """Whether the selected objectives have points to choose from."""
        wanted = self.only.objective or self.objectives
        return any(self.study(name).num_points > 1 for name in wanted)


def load_comparison(path: Path) -> tuple[Comparison, Path]:
    """Load a comparison, and the path of the recipe whose runs it shares: its own or its base."""
    raw, root = _with_extended(path, seen=())
    try:
        return Comparison.model_validate(raw), root
    except pydantic.ValidationError as error:
        problems = "; ".join(_explain(problem) for problem in error.errors())
        raise ValueError(f"{path}: {problems}") from None


def overlap(key: str, other: str) -> bool:
    """Whether one of two keys is the other, or the table that contains it."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def lay_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tables:
    """Merge nested tables; those of `above` take precedence, and neither is changed."""
    result = deepcopy(dict(below))
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = lay_over(result[key], value) if both else deepcopy(value)
    return result


def _with_extended(path: Path, seen: tuple[Path, ...]) -> tuple[Tables, Path]:
    if path in seen:
        raise ValueError(f"{path} extends itself")
    raw = read_toml(path)
    if isinstance(raw.get("published"), str):
        raw["published"] = str(path.parent / raw["published"])
    extended = raw.pop("extends", None)
    if extended is None:
        return raw, path
    beside = path.parent / str(extended)
    found = None if beside.exists() else builtin_file(str(extended))
    below, root = _with_extended(found or beside, (*seen, path))
    return lay_over(below, raw), root


def _known(where: str, label: str, labels: Collection[str]) -> None:
    if label not in labels:
        raise ValueError(f"{where} names {label!r}; {suggestion(label, labels, 'there are')}")


def _explain(problem: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in problem["loc"] if part not in (LIST, RANGE))
    message = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    if problem["type"] == "extra_forbidden":
        *tables, key = map(str, problem["loc"])
        table = Range if RANGE in tables else ObjectiveChoice if tables else Comparison
        return f"unknown key {where}; {suggestion(key, table.model_fields, 'there are')}"
    return f"{where} {message}" if where else message
