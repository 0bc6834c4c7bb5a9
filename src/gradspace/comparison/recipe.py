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

Every choice is a part of a training recipe; a cell of the grid is all its parts laid over each
other. `gradspace compare --list` names those that come with gradspace.
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
    "seed": "seeds tell the runs of a cell apart: use --seeds, or --only seed=NUMBER",
    "data.source": "datasets go by their names in [datasets]: use --data, or add one to the recipe",
    "model.name": "models go by their names in [models]: use --only model=LABEL, or add one",
    "objective.name": (
        "objectives are the rows, each under its own name: choose with --only objective=LABEL, or "
        "add one to the recipe"
    ),
}
"""Keys of the training recipe that are an axis of every grid, and what to do in place of them."""


class Choice(RecipeTable):
    """One value of an axis of the grid: tables that it lays over the training recipe."""

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
    """Which of a dataset's inputs it is trained on."""
    after: str | None = None
    """The model whose run, of the same objective and seed, it starts from."""


class ObjectiveChoice(Choice):
    parameters: dict[str, AxisValues] = Field(default_factory=dict)
    """Key of the training recipe -> values to try with this objective."""
    offline: Tables = Field(default_factory=dict)
    after: str | None = None
    """The objective of a first round, whose best model mines the negatives of this one."""
    continues: bool = False
    """Does it start from the weights of that model?"""
    mines: bool = True
    """Without it, a second round is more training: the control of what mining adds."""

    @model_validator(mode="after")
    def _continues_something(self) -> ObjectiveChoice:
        if self.continues and self.after is None:
            raise ValueError("continues needs after, the first round to go on from")
        return self


class Exceptional(RecipeTable):
    """What cells of a dataset, a model, an objective, or of several, have of their own."""

    dataset: str | None = None
    model: str | None = None
    objective: str | None = None
    after: str | None = None
    """The objective of a first round: all its second rounds."""
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
    """What counts as a contribution to the gradient."""

    epsilon: NonNegative = Counting.epsilon
    convention: Convention = Counting.convention

    @property
    def counting(self) -> Counting:
        return Counting(self.epsilon, self.convention)


class Only(RecipeTable):
    """The part of the grid that is wanted; everything where nothing is said."""

    dataset: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    objective: tuple[str, ...] = ()
    seed: tuple[NonNegativeInt, ...] = ()


class Comparison(RecipeTable):
    """A table to be made: the grid, and how it is shown."""

    title: str
    paper: str = ""
    published: str | None = None
    """A CSV with the numbers of the paper, named relative to the recipe that says so."""
    seeds: PositiveInt = 3
    layout: Literal["rows", "grid"] = "rows"
    """One row per objective, or triplet weights x pair weights."""
    metrics: tuple[str, ...] = (*RECALLS, "rsum")
    folds: PositiveInt = 1
    cocos: CocosTable = CocosTable()
    """What C^q and its like count."""
    needs: dict[str, str] = Field(default_factory=dict)
    """What has to be there, with a sentence on where it comes from."""
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
    """Points of every objective, spread evenly over its parameters."""
    trials: PositiveInt | None = None
    """Points of every objective in all; those after the sample are chosen by what came out."""

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
            raise ValueError("sample and trials are for parameters, and there are none")
        return self

    def study(self, objective: str) -> Study:
        """What is varied of an objective; its own values come before those that all share."""
        axes = {**self.parameters, **self.objectives[objective].parameters}
        return Study(axes, self.sample, self.trials)

    @property
    def logarithmic(self) -> set[str]:
        """Keys of ranges that are spread in their logarithm."""
        axes = [axis for name in self.objectives for axis in self.study(name).axes.items()]
        return {key for key, values in axes if isinstance(values, Range) and values.log}

    def part(self, wanted: Sequence[str]) -> Comparison:
        """The part of the grid that `model=VSRN` and the like say."""
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
                "trials are chosen by the mean over all seeds: leave only.seed out, or share the "
                "work by --only objective=LABEL"
            )
        return self.model_copy(update={"only": only})

    @property
    def _axes(self) -> dict[str, Collection[str]]:
        """Labels by which a part of the grid is named."""
        return {
            "dataset": self.datasets,
            "model": self.models,
            "objective": self.objectives,
            "seed": [str(seed) for seed in range(self.seeds)],
        }

    @property
    def split(self) -> str:
        """Where runs are judged: parameters are chosen on dev, so that test stays unseen."""
        return "dev" if self.is_study else "test"

    @property
    def is_study(self) -> bool:
        """Is there anything to choose for the objectives that are wanted?"""
        wanted = self.only.objective or self.objectives
        return any(self.study(name).num_points > 1 for name in wanted)


def load_comparison(path: Path) -> tuple[Comparison, Path]:
    """A comparison, and the recipe whose runs it shares: its own, or the one it extends."""
    raw, root = _with_extended(path, seen=())
    try:
        return Comparison.model_validate(raw), root
    except pydantic.ValidationError as error:
        problems = "; ".join(_explain(problem) for problem in error.errors())
        raise ValueError(f"{path}: {problems}") from None


def overlap(key: str, other: str) -> bool:
    """Whether one of two keys is the other, or the table that it is in."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def lay_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tables:
    """Nested tables, those of `above` first; neither is changed."""
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
