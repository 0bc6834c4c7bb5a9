"""Recipes: what a run trains, on which data and how, as TOML that is checked key by key.

    [data]
    source = "scenes"
    [model]
    name = "vse++"
    [objective]
    name = "circle/sigmoid-ms"
    [training]
    epochs = 10

Omitted keys have the value published for the model. `[model]` and `[objective]` also take the
parameters of the model and the objective they name, `[data]` the options of the dataset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pydantic
import tomli_w
from pydantic import BaseModel, Field, model_validator

from gradspace.models import PairScorer, Reranker, model_info
from gradspace.objectives import Objective, objective
from gradspace.parameters import NONE, suggestion
from gradspace.plugins import not_repeated
from gradspace.runs.recipe_tables import (
    DataRecipe,
    FinetuneRecipe,
    ModelRecipe,
    ObjectiveRecipe,
    OfflineRecipe,
    RecipeTable,
    TrainingRecipe,
)
from gradspace.runs.toml_files import apply_override, read_toml


class Recipe(RecipeTable):
    """Everything that defines a run, except the machine."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    init: Path | None = None
    """A run from whose best weights training starts."""
    data: DataRecipe = DataRecipe()
    model: ModelRecipe = ModelRecipe()
    objective: ObjectiveRecipe = ObjectiveRecipe()
    training: TrainingRecipe = TrainingRecipe()
    finetune: FinetuneRecipe | None = None
    offline: OfflineRecipe | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Recipe:
        build_objective(self)
        build_objective(self, warm_up=True)
        self._check_pretrained()
        if self.finetune and not self.model.backbone:
            raise ValueError("finetune needs model.backbone: there is no backbone to fine-tune")
        if not (self.training.epochs or self.finetune):
            raise ValueError("training.epochs is 0: use at least 1, or give finetune.epochs")
        if self.model.backbone and self.data.features:
            raise ValueError("give data.features or model.backbone, not both: features are final")
        self._check_schedule()
        self._check_towers()
        if self.offline and self.training.captions_per_image != 1:
            raise ValueError("offline negatives are mined for pairs: set captions_per_image to 1")
        if self.objective.memory and issubclass(model_info(self.model.name).build, PairScorer):
            raise ValueError(
                f"objective.memory keeps embeddings, and {self.model.name} has none: it scores "
                "pairs; leave objective.memory at 0"
            )
        if self.objective.positives == "text" and _matches_by_image(self.model.name):
            raise ValueError(
                f'objective.positives = "text" is not for {self.model.name}, whose matching draws '
                'captions of other images as negatives, even equal ones: leave it at "ids"'
            )
        if build_objective(self).uses_offline and not self.offline:
            raise ValueError(
                f"{self.objective.name} needs mined negatives: give offline.lists, a file that "
                "`gradspace mine` writes"
            )
        return self

    def _check_schedule(self) -> None:
        training, finetune = self.training, self.finetune
        if training.warm_up_steps and training.warm_up_share:
            raise ValueError("give training.warm_up_steps or training.warm_up_share, not both")
        decays = training.decay_epochs or (finetune and finetune.decay_epochs)
        if training.schedule != "steps" and decays:
            raise ValueError(
                f'decay_epochs are for training.schedule = "steps": {training.schedule} decays by '
                "itself"
            )

    def _check_towers(self) -> None:
        model, training = self.model, self.training
        trained = model.pretrained or model.text_encoder or (model.backbone and self.finetune)
        for key in ("shard_towers", "recompute_towers", "compile_towers"):
            frozen = key == "compile_towers" and model.backbone
            if getattr(training, key) and not (trained or frozen):
                raise ValueError(
                    f"training.{key} is for towers of transformers that are trained: give "
                    "model.pretrained, model.text_encoder, or model.backbone with finetune"
                )
        if not training.shard_towers:
            return
        if training.ema is not None:
            raise ValueError(
                "training.ema keeps a whole second model in every process: leave it or "
                "training.shard_towers out"
            )
        if training.precision == "float16":
            raise ValueError(
                "training.shard_towers is for precision bfloat16 or float32, whose gradients need "
                "no scaling; got float16"
            )

    def _check_pretrained(self) -> None:
        model, takes = self.model, model_info(self.model.name).pretrained
        if takes and not model.pretrained:
            raise ValueError(
                f"{model.name} needs model.pretrained: the folder or hub name of a transformers "
                "model such as CLIP or SigLIP"
            )
        if model.pretrained and not takes:
            raise ValueError(
                f"{model.name} takes model.backbone and model.text_encoder; model.pretrained is "
                'for model.name = "dual"'
            )
        if model.pretrained and (model.backbone or model.text_encoder or self.data.features):
            raise ValueError(
                "model.pretrained reads images and captions by itself: leave model.backbone, "
                "model.text_encoder and data.features out"
            )
        if model.word_vectors and (model.text_encoder or model.pretrained):
            raise ValueError(
                "model.word_vectors are for a GRU over words, and a transformers model has its "
                "own: leave them out, or leave model.text_encoder and model.pretrained out"
            )
        if (model.image_size or model.whole_images) and not model.backbone:
            raise ValueError(
                "model.image_size and model.whole_images say how model.backbone reads pictures: "
                "give it too"
            )
        self._check_temperature()

    def _check_temperature(self) -> None:
        """Check that a learned temperature replaces one of the objective's."""
        if not self.model.parameters.get("learn_temperature"):
            return
        constants = {"nt-xent": {"temperature"}, "siglip": {"scale", "bias"}}
        if self.objective.name not in constants:
            raise ValueError(
                f"model.learn_temperature is for {' and '.join(constants)}: "
                f"{self.objective.name} has no temperature to learn"
            )
        for key in constants[self.objective.name] & self.objective.parameters.keys():
            raise ValueError(f"model.learn_temperature replaces objective.{key}: leave it out")


def _matches_by_image(model: str) -> bool:
    """Whether the model trains its re-ranking with negatives that it draws by itself."""
    kind = model_info(model).build
    return issubclass(kind, Reranker) and not issubclass(kind, PairScorer)


def build_objective(recipe: Recipe, *, warm_up: bool = False) -> Objective:
    """Build the objective of the recipe, or that of its first epoch."""
    if warm_up and recipe.objective.warm_up:
        return objective(recipe.objective.warm_up)
    return objective(recipe.objective.name, **recipe.objective.parameters)


def load_recipe(path: Path | None = None, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe, apply `table.key=value` overrides, fill in published values, check."""
    raw = read_toml(path) if path else {}
    for override in overrides:
        apply_override(raw, override)
    try:
        return make_recipe(raw, str(path) if path else "recipe")
    except ValueError as error:
        if path and (missing := not_repeated(path.parent)):
            raise ValueError(f"{error}{missing}") from None
        raise


def make_recipe(raw: Mapping[str, Any], name: str = "recipe") -> Recipe:
    """Check a recipe given as nested dictionaries."""
    try:
        return Recipe.model_validate(_with_published(raw))
    except pydantic.ValidationError as error:
        problems = "; ".join(_explain(problem) for problem in error.errors())
        raise ValueError(f"{name}: {problems}") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _with_published(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fill in the published training of the model, where the recipe does not say otherwise."""
    tables = [raw.get(name, {}) for name in ("model", "training", "objective")]
    if not all(isinstance(table, Mapping) for table in tables):
        return raw  # which will be rejected
    model, training, chosen = tables
    info = model_info(model.get("name", ModelRecipe().name))
    published = dict(info.training)
    data = raw.get("data", {})
    if isinstance(data, Mapping) and not _reads_grids_or_sentences(model, data):
        published |= info.words_and_features
    if training.get("schedule", "steps") != "steps":
        published["decay_epochs"] = []
    filled = {**raw, "training": {**published, **training}}
    name = chosen.get("name", ObjectiveRecipe().name)
    if info.warm_up and "warm_up" not in chosen and objective(name).mined:
        filled["objective"] = {**chosen, "warm_up": info.warm_up}
    return filled


def _reads_grids_or_sentences(model: Mapping[str, Any], data: Mapping[str, Any]) -> bool:
    """Whether a transformers model reads the captions, or the images come as grids."""
    pretrained = {"backbone", "text_encoder", "pretrained"} & model.keys()
    return bool(pretrained) or data.get("regions") == "grid"


def recipe_toml(recipe: Recipe) -> str:
    """Write the resolved recipe as TOML."""
    tables = recipe.model_dump(mode="json", exclude_none=True)
    if recipe.training.clip is None:
        tables["training"]["clip"] = NONE
    if recipe.objective.warm_up is None and model_info(recipe.model.name).warm_up:
        tables["objective"]["warm_up"] = NONE
    return tomli_w.dumps(tables)


def _explain(problem: Mapping[str, Any]) -> str:
    """Describe a problem that pydantic found."""
    *tables, key = (str(part) for part in problem["loc"]) if problem["loc"] else ("",)
    where = ".".join([*tables, key])
    if problem["type"] == "extra_forbidden":
        known = _table(tables).model_fields
        return f"unknown key {where}; {suggestion(key, known, 'there are')}"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{where} {message}, got {problem['input']!r}" if where else message


def _table(path: Sequence[str]) -> type[BaseModel]:
    """Find the table of a key; only these reject unknown keys."""
    closed: dict[str, type[BaseModel]] = {
        "finetune": FinetuneRecipe,
        "offline": OfflineRecipe,
        "training": TrainingRecipe,
    }
    return closed.get(path[0], Recipe) if path else Recipe
