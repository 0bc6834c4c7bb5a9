"""Registry of models: a model is a decorated `RetrievalModel`, found by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from pydantic import Field

from gradspace.models.contract import RetrievalModel
from gradspace.parameters import parameters_of
from gradspace.plugins import admit

Count = Annotated[int, Field(strict=True, gt=0)]
Share = Annotated[float, Field(strict=True, ge=0, lt=1)]

STEP_DECAY = {"batch_size": 128, "decay_epochs": [15], "decay": 0.1, "clip": 2.0}
"""Schedule shared by the published trainings of VSE++, VSRN, VSE-infinity, SCAN and BFAN."""

M = TypeVar("M", bound=type[RetrievalModel])


@dataclass(frozen=True)
class ModelInfo:
    """A registered model, as `gradspace.models.models()` lists it."""

    name: str
    build: type[RetrievalModel]
    source: str
    training: Mapping[str, Any]
    """Published training, as keys of a recipe's [training] table."""
    warm_up: str | None
    """Objective of the first epoch, if the hardest negatives alone do not train the model."""
    words_and_features: Mapping[str, Any] = field(default_factory=dict)
    """Changes to `training` for words of a vocabulary and precomputed features."""
    pretrained: bool = False
    """Whether it is a single pretrained network for both sides, named by `model.pretrained`."""

    @property
    def summary(self) -> str:
        return (self.build.__doc__ or "").strip().partition("\n")[0]

    @property
    def known(self) -> dict[str, tuple[Any, Any]]:
        """Type and default of every parameter, by name."""
        return parameters_of(self.build.__init__)

    @property
    def parameters(self) -> dict[str, Any]:
        """Default of every parameter, by name."""
        return {name: default for name, (_, default) in self.known.items()}


MODELS: dict[str, ModelInfo] = {}


def model(
    name: str,
    *,
    source: str,
    training: Mapping[str, Any],
    warm_up: str | None = None,
    words_and_features: Mapping[str, Any] | None = None,
    pretrained: bool = False,
) -> Callable[[M], M]:
    """Register a `RetrievalModel` class under `name`.

    It is built as `build(image_input, text_input, **parameters)`: its parameters are the arguments
    of `__init__` that have a default, and are checked against their types. An argument whose
    default is a dataclass, such as `Encoders`, stands for its fields.
    """

    def register(build: M) -> M:
        admit(name, build, MODELS[name].build if name in MODELS else None)
        info = ModelInfo(
            name, build, source, training, warm_up, words_and_features or {}, pretrained
        )
        if not info.summary:
            raise ValueError(f"{name!r} needs a docstring: its first line is shown to users")
        build.name = name
        MODELS[name] = info
        return build

    return register
