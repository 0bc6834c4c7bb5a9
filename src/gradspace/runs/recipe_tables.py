"""Tables of a recipe, with the meaning of each key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, model_validator

from gradspace.parameters import NONE, NonNegative, Positive

CanBeNone = BeforeValidator(lambda value: None if value == NONE else value)
"""Validator of keys that may be None and have another default."""


class RecipeTable(BaseModel):
    """A table of a recipe; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class OpenTable(BaseModel):
    """A table whose further keys are parameters of the object it names."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _write_none(cls, given: Any) -> Any:
        """Write None as a word, as TOML has no None and omitted keys have their default."""
        if not isinstance(given, Mapping):
            return given
        left_out = {key for key, value in given.items() if value is None} - cls.model_fields.keys()
        return {**given, **dict.fromkeys(left_out, NONE)}


class DataRecipe(OpenTable):
    """Source of the pairs; further keys are options of the dataset's reader."""

    source: str = "scenes"
    images: Path | None = None
    """Image folder or zip, if it is not beside the captions."""
    features: Path | None = None
    """Precomputed features to train on instead of the images."""
    regions: Literal["grid", "detector"] | None = None
    """Kind of the regions of features; files written by `gradspace data features` tell it."""
    skip_broken: bool = False


class ModelRecipe(OpenTable):
    name: str = "vse++"
    backbone: str | None = None
    """A transformers vision model, folder or hub name; without it the model reads features."""
    image_size: PositiveInt | None = None
    """Side of the pixels that the backbone reads; by default its own."""
    whole_images: bool = False
    """Squeeze whole pictures into the square instead of cropping them to the middle."""
    text_encoder: str | None = None
    """A transformers text model; without it a GRU over the words of the training captions."""
    word_vectors: Path | None = None
    """Text file of words and their vectors, such as GloVe's, from which a GRU's word embeddings
    start; words that it lacks start at random. It is not needed again after training."""
    punctuation: bool = False
    """Treat punctuation marks as words, as in the published code; without a text_encoder."""
    pretrained: str | None = None
    """For `dual`: a transformers model of both sides, such as CLIP or SigLIP."""


class ObjectiveRecipe(OpenTable):
    name: str = "triplet-hard"
    positives: Literal["ids", "position", "text"] = "ids"
    """Positives of an image: its captions ("ids"); only the one it is paired with ("position", as
    in most published code); or also equal captions of other images ("text")."""
    warm_up: Annotated[str | None, CanBeNone] = None
    """Another objective for the first epoch, such as "triplet" for VSE-infinity; or "none"."""
    memory: Annotated[int, Field(ge=0)] = 0
    """Number of embeddings of earlier batches, per side, kept as further negatives."""


class TrainingRecipe(RecipeTable):
    epochs: Annotated[int, Field(ge=0)] = 30
    """Epochs with the backbone frozen, if there is one; 0 if only `finetune` is left to do."""
    batch_size: PositiveInt = 128
    captions_per_image: PositiveInt | Literal["all"] = 1
    """Captions per image in a batch, "all" for SmoothAP; above 1, batches count images."""
    chunk: PositiveInt | None = None
    """Rows of a batch that are in memory at once, if a whole batch is too large for it."""
    optimizer: Literal["adam", "adamw"] = "adam"
    learning_rate: Positive = 2e-4
    weight_decay: NonNegative = 0.0
    warm_up_steps: Annotated[int, Field(ge=0)] = 0
    """Steps over which the learning rate rises from zero."""
    warm_up_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Steps of that rise as a share of the training, and of the fine-tuning."""
    schedule: Literal["steps", "linear", "cosine"] = "steps"
    """Decay of the rate after that: in steps, or to zero at the end of the training."""
    decay_epochs: tuple[PositiveInt, ...] = (15,)
    """Epochs after which the learning rate is multiplied by `decay`."""
    decay: Positive = 0.1
    clip: Annotated[Positive | None, CanBeNone] = 2.0
    """Norm to which gradients are clipped; or "none"."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    shard_towers: bool = False
    """Divide weights, gradients and optimiser of the trained towers among processes (FSDP2)."""
    recompute_towers: bool = False
    """Recompute the layers of the towers in the backward pass, to save memory (checkpointing)."""
    compile_towers: bool = False
    """Compile the layers of the towers with torch.compile."""
    accumulate: PositiveInt = 1
    """Batches whose gradients are summed before a step."""
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay of an exponential moving average of the weights, which is then evaluated."""
    num_workers: Annotated[int, Field(ge=0)] = 0
    """Processes that decode images, or threads that read features, ahead of time."""
    track_every: PositiveInt = 100
    """Steps between two measurements of COCOS and gradient statistics."""
    trackers: tuple[str, ...] = ()
    """Trackers of the measurements: "tensorboard", "wandb", "mlflow", or one of your own."""
    save_every: NonNegative = 60.0
    """Seconds between two checkpoints."""

    @model_validator(mode="before")
    @classmethod
    def _read_tensorboard(cls, table: Any) -> Any:
        """Accept `tensorboard`, the key of earlier runs."""
        if not isinstance(table, Mapping) or "tensorboard" not in table:
            return table
        others = {key: value for key, value in table.items() if key != "tensorboard"}
        return {"trackers": ["tensorboard"], **others} if table["tensorboard"] else others


class FinetuneRecipe(RecipeTable):
    """Second step of training, which includes the backbone."""

    epochs: PositiveInt = 15
    learning_rate: Positive = 2e-5
    decay_epochs: tuple[PositiveInt, ...] = ()
    """Counted from the start of this step."""


class OfflineRecipe(RecipeTable):
    """Negatives mined over the whole training set, and how they are drawn.

    The lists of a run are in its folder: a copy of `lists`, or lists mined by the model itself.
    """

    lists: Path | None = None
    """File written by `gradspace mine`."""
    every: PositiveInt | None = None
    """Epochs after which lists are mined anew, with the current weights."""
    draw: Literal["uniform", "normal"] = "uniform"
    shared: bool = True
    """Use the published draw: one rank for both caption and image."""
    num_texts: PositiveInt = 300
    """Number of captions at the start of an image's list that take part."""
    num_images: PositiveInt = 60
    skip: Annotated[int, Field(ge=0)] = 0
    """Number of first entries of a list to leave out, as they may be false negatives."""
    above: float | None = None
    """Leave out entries that score higher than the positive pair by more than this."""

    @model_validator(mode="after")
    def _leaves_something(self) -> OfflineRecipe:
        if self.skip >= min(self.num_texts, self.num_images):
            raise ValueError("skip must be smaller than num_texts and num_images")
        return self
