"""The tables of a recipe, and what each of their keys means."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, model_validator

from gradspace.parameters import NONE, NonNegative, Positive

CanBeNone = BeforeValidator(lambda value: None if value == NONE else value)
"""For what has a default other than None."""


class RecipeTable(BaseModel):
    """A table of a recipe: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class OpenTable(BaseModel):
    """A table whose further keys are parameters of what it names."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _write_none(cls, given: Any) -> Any:
        """TOML has no word for None, and what is left out has its default."""
        if not isinstance(given, Mapping):
            return given
        left_out = {key for key, value in given.items() if value is None} - cls.model_fields.keys()
        return {**given, **dict.fromkeys(left_out, NONE)}


class DataRecipe(OpenTable):
    """Where the pairs come from; further keys are options of the dataset's reader."""

    source: str = "scenes"
    images: Path | None = None
    """Image folder or zip, where it is not beside the captions."""
    features: Path | None = None
    """Precomputed features to train on instead of the images."""
    regions: Literal["grid", "detector"] | None = None
    """What the regions of features are; files that `gradspace data features` wrote say it."""
    skip_broken: bool = False


class ModelRecipe(OpenTable):
    name: str = "vse++"
    backbone: str | None = None
    """A transformers vision model, folder or hub name; without it the model reads features."""
    image_size: PositiveInt | None = None
    """Side of the pixels that the backbone reads, its own where it is left out."""
    whole_images: bool = False
    """Squeeze whole pictures into the square; the middle square is cut out otherwise."""
    text_encoder: str | None = None
    """A transformers text model; without it a GRU over the words of the training captions."""
    word_vectors: Path | None = None
    """A text file of words and their numbers, such as GloVe's, that a GRU's word embeddings start
    from; words that it lacks start at random. A run does not need it again."""
    punctuation: bool = False
    """Are marks words of the vocabulary, as in the published code? Without a text_encoder."""
    pretrained: str | None = None
    """For `dual`: a transformers model of both sides, such as CLIP or SigLIP."""


class ObjectiveRecipe(OpenTable):
    name: str = "triplet-hard"
    positives: Literal["ids", "position", "text"] = "ids"
    """What belongs to an image: its captions; only the one it is paired with ("position", as in
    most published code); or also captions of other images that say the same word for word."""
    warm_up: Annotated[str | None, CanBeNone] = None
    """Another objective for the first epoch, such as "triplet" for VSE-infinity; or "none"."""
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
    warm_up_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The same as a share of the training, and of the fine-tuning."""
    schedule: Literal["steps", "linear", "cosine"] = "steps"
    """How the rate falls after that: in steps, or to zero at the end of the training."""
    decay_epochs: tuple[PositiveInt, ...] = (15,)
    """Epochs after which the learning rate is multiplied by `decay`."""
    decay: Positive = 0.1
    clip: Annotated[Positive | None, CanBeNone] = 2.0
    """Longest gradient; or "none"."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    shard_towers: bool = False
    """Divide weights, gradients and optimiser of the trained towers among the processes (FSDP2)."""
    recompute_towers: bool = False
    """Compute the layers of the towers again in the backward pass, to keep less (checkpointing)."""
    compile_towers: bool = False
    """Compile the layers of the towers with torch.compile."""
    accumulate: PositiveInt = 1
    """Batches whose gradients are summed before a step."""
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay of an exponential moving average of the weights, which is then evaluated."""
    num_workers: Annotated[int, Field(ge=0)] = 0
    """Processes that decode images, or threads that read features, before they are asked for."""
    track_every: PositiveInt = 100
    """Steps between two measurements of COCOS and gradient statistics."""
    trackers: tuple[str, ...] = ()
    """Where measurements also go: "tensorboard", "wandb", "mlflow", or one of your own."""
    save_every: NonNegative = 60.0
    """Seconds between two checkpoints."""

    @model_validator(mode="before")
    @classmethod
    def _read_tensorboard(cls, table: Any) -> Any:
        """Read `tensorboard`, the key of earlier runs."""
        if not isinstance(table, Mapping) or "tensorboard" not in table:
            return table
        others = {key: value for key, value in table.items() if key != "tensorboard"}
        return {"trackers": ["tensorboard"], **others} if table["tensorboard"] else others


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
