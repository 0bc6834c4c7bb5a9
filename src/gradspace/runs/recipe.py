"""Recipes: what a run trains, on what and how, as TOML checked key by key.

    [data]
    source = "scenes"
    [model]
    name = "vse++"
    [objective]
    name = "circle/sigmoid-ms"
    [training]
    epochs = 10

Whatever is left out has the published value for the model. `[model]` and `[objective]` also take
the parameters of the model and the objective they name, `[data]` the options of the dataset.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import tomli_w
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from gradspace.files import check_is_file
from gradspace.models import PairScorer, model_info
from gradspace.objectives import Objective, objective
from gradspace.parameters import NonNegative, Positive, suggestion


class RecipeTable(BaseModel):
    """A table of a recipe: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class OpenTable(BaseModel):
    """A table whose further keys are parameters of what it names."""

    model_config = ConfigDict(extra="allow", frozen=True)

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class DataRecipe(OpenTable):
    """Where the pairs come from; further keys are options of the dataset's reader."""

    source: str = "scenes"
    images: Path | None = None
    """Image folder or zip, where it is not beside the captions."""
    features: Path | None = None
    """Precomputed features to train on instead of the images."""
    skip_broken: bool = False


class ModelRecipe(OpenTable):
    name: str = "vse++"
    backbone: str | None = None
    """A transformers vision model, folder or hub name; without it the model reads features."""
    text_encoder: str | None = None
    """A transformers text model; without it a GRU over the words of the training captions."""
    pretrained: str | None = None
    """For `dual`: a transformers model of both sides, such as CLIP or SigLIP."""


class ObjectiveRecipe(OpenTable):
    name: str = "triplet-hard"
    positives: Literal["ids", "position"] = "ids"
    warm_up: str | None = None
    """Another objective for the first epoch, such as "triplet" for VSE-infinity."""
    memory: Annotated[int, Field(ge=0)] = 0
    """Embeddings of earlier batches, of images and of texts, that are further negatives."""


class TrainingRecipe(RecipeTable):
    epochs: Annotated[int, Field(ge=0)] = 30
    """With the backbone frozen, where there is one; 0 where only `finetune` is left to do."""
    batch_size: PositiveInt = 128
    captions_per_image: PositiveInt | Literal["all"] = 1
    """Captions that a batch takes of each image, "all" for SmoothAP; batches then count images."""
    chunk: PositiveInt | None = None
    """Rows of a batch that are in memory at once, where a whole batch is too large for it."""
    optimizer: Literal["adam", "adamw"] = "adam"
    learning_rate: Positive = 2e-4
    weight_decay: NonNegative = 0.0
    warm_up_steps: Annotated[int, Field(ge=0)] = 0
    """Steps over which the learning rate rises from zero."""
    decay_epochs: tuple[PositiveInt, ...] = (15,)
    """Epochs after which the learning rate is multiplied by `decay`."""
    decay: Positive = 0.1
    clip: Positive | None = 2.0
    """Longest gradient."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    accumulate: PositiveInt = 1
    """Batches whose gradients are summed before a step."""
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay of an exponential moving average of the weights, which is then evaluated."""
    num_workers: Annotated[int, Field(ge=0)] = 0
    """Processes that decode images, or threads that read features, before they are asked for."""
    track_every: PositiveInt = 100
    """Steps between two measurements of COCOS and gradient statistics."""
    tensorboard: bool = False
    """Also write TensorBoard events into the run; needs the extra `tracking`."""
    save_every: NonNegative = 60.0
    """Seconds between two checkpoints."""


class FinetuneRecipe(RecipeTable):
    """A second step of training, with the backbone."""

    epochs: PositiveInt = 15
    learning_rate: Positive = 2e-5
    decay_epochs: tuple[PositiveInt, ...] = ()
    """Counted from the start of this step."""


class OfflineRecipe(RecipeTable):
    """Negatives that were mined over the whole training set, and how they are drawn.

    The lists of a run are in its folder: those of `lists`, or mined anew by the model itself.
    """

    lists: Path | None = None
    """A file of `gradspace mine`."""
    every: PositiveInt | None = None
    """Epochs after which lists are mined anew, with the weights of that moment."""
    draw: Literal["uniform", "normal"] = "uniform"
    shared: bool = True
    """The published draw: one rank for caption and image."""
    num_texts: PositiveInt = 300
    """Of the captions in an image's list, so many take part."""
    num_images: PositiveInt = 60
    skip: Annotated[int, Field(ge=0)] = 0
    """First entries of a list to leave out, because they may be no negatives."""
    above: float | None = None
    """Leave out what scores higher than the positive pair by more than this."""

    @model_validator(mode="after")
    def _leaves_something(self) -> OfflineRecipe:
        if self.skip >= min(self.num_texts, self.num_images):
            raise ValueError("skip must be smaller than num_texts and num_images")
        return self


class Recipe(RecipeTable):
    """Everything that defines a run, but for the machine."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    init: Path | None = None
    """A run whose best weights training starts from."""
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
        if self.offline and self.training.captions_per_image != 1:
            raise ValueError("offline negatives are mined for pairs: captions_per_image must be 1")
        if self.objective.memory and issubclass(model_info(self.model.name).build, PairScorer):
            raise ValueError(
                f"objective.memory keeps embeddings, and {self.model.name} has none: it scores "
                "pairs; leave objective.memory at 0"
            )
        if build_objective(self).uses_offline and not self.offline:
            raise ValueError(
                f"{self.objective.name} needs mined negatives: give offline.lists, a file that "
                "`gradspace mine` writes"
            )
        return self

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
        self._check_temperature()

    def _check_temperature(self) -> None:
        """A learned one takes the place of the objective's."""
        if not self.model.parameters.get("learn_temperature"):
            return
        constants = {"nt-xent": {"temperature"}, "siglip": {"scale", "bias"}}
        if self.objective.name not in constants:
            raise ValueError(
                f"model.learn_temperature is for {' and '.join(constants)}: "
                f"{self.objective.name} has no temperature that could be learned"
            )
        for key in constants[self.objective.name] & self.objective.parameters.keys():
            raise ValueError(f"model.learn_temperature takes the place of objective.{key}")


def build_objective(recipe: Recipe, *, warm_up: bool = False) -> Objective:
    """The objective of the recipe, or the one of its first epoch."""
    if warm_up and recipe.objective.warm_up:
        return objective(recipe.objective.warm_up)
    return objective(recipe.objective.name, **recipe.objective.parameters)


def load_recipe(path: Path | None = None, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe, apply `table.key=value` overrides, fill in published values, check."""
    raw = read_toml(path) if path else {}
    for override in overrides:
        apply_override(raw, override)
    return make_recipe(raw, str(path) if path else "recipe")


def make_recipe(raw: Mapping[str, Any], name: str = "recipe") -> Recipe:
    """A checked recipe from nested dictionaries."""
    try:
        return Recipe.model_validate(_with_published(raw))
    except pydantic.ValidationError as error:
        problems = "; ".join(_explain(problem) for problem in error.errors())
        raise ValueError(f"{name}: {problems}") from None
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _with_published(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fill in how the model was published to be trained, where the recipe does not say."""
    tables = [raw.get(name, {}) for name in ("model", "training", "objective")]
    if not all(isinstance(table, Mapping) for table in tables):
        return raw  # which will be refused
    model, training, chosen = tables
    info = model_info(model.get("name", ModelRecipe().name))
    filled = {**raw, "training": {**info.training, **training}}
    name = chosen.get("name", ObjectiveRecipe().name)
    if info.warm_up and "warm_up" not in chosen and objective(name).mined:
        filled["objective"] = {**chosen, "warm_up": info.warm_up}
    return filled


def recipe_toml(recipe: Recipe) -> str:
    """The recipe as TOML, everything resolved."""
    return tomli_w.dumps(recipe.model_dump(mode="json", exclude_none=True))


def read_toml(path: Path) -> dict[str, Any]:
    check_is_file(path, "a recipe, a TOML file")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from None


def apply_override(raw: dict[str, Any], override: str) -> None:
    """Apply `training.epochs=5`; the value is read as TOML where it can be, else as text."""
    keys, equals, text = override.partition("=")
    if not equals:
        raise ValueError(f"--set takes table.key=value, got {override!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    try:
        set_key(raw, keys.strip(), value)
    except ValueError as error:
        raise ValueError(f"--set {override}: {error}") from None


def set_key(raw: dict[str, Any], path: str, value: Any) -> None:
    """Set `training.epochs` in nested tables."""
    *tables, key = path.split(".")
    for table in tables:
        raw = raw.setdefault(table, {})
        if not isinstance(raw, dict):
            raise ValueError(f"{table} is not a table")
    raw[key] = value


def _explain(problem: Mapping[str, Any]) -> str:
    """One problem that pydantic found, in words."""
    *tables, key = (str(part) for part in problem["loc"]) if problem["loc"] else ("",)
    where = ".".join([*tables, key])
    if problem["type"] == "extra_forbidden":
        known = _table(tables).model_fields
        return f"unknown key {where}; {suggestion(key, known, 'there are')}"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{where} {message}, got {problem['input']!r}" if where else message


def _table(path: Sequence[str]) -> type[BaseModel]:
    """The table that a key is in; only these refuse unknown keys."""
    closed: dict[str, type[BaseModel]] = {
        "finetune": FinetuneRecipe,
        "offline": OfflineRecipe,
        "training": TrainingRecipe,
    }
    return closed.get(path[0], Recipe) if path else Recipe
