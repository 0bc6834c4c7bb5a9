"""Models by name; importing this package imports its modules, which register theirs."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from gradspace.models.contract import PairScorer, Reranker, RetrievalModel
from gradspace.models.inputs import ImageInput, TextInput
from gradspace.models.registry import MODELS, ModelInfo, model
from gradspace.parameters import arguments_of, checked, suggestion
from gradspace.plugins import load_installed

__all__ = [
    "ImageInput",
    "ModelInfo",
    "PairScorer",
    "Reranker",
    "RetrievalModel",
    "TextInput",
    "build_model",
    "model",
    "model_info",
    "models",
]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def build_model(
    name: str, *, image_input: ImageInput, text_input: TextInput, **parameters: Any
) -> RetrievalModel:
    """Build the model of that name for the given inputs, checking its parameters.

    >>> image_input, text_input = ImageInput(shape=(36, 2048)), TextInput(vocabulary_size=8481)
    >>> model = build_model("vse++", image_input=image_input, text_input=text_input, width=512)
    >>> model.width
    512
    """
    info = model_info(name)
    build: Any = info.build
    if build.reads_passages != image_input.passages:
        reads, given = ("passages", "images") if build.reads_passages else ("images", "passages")
        others = sorted(n for n in MODELS if MODELS[n].build.reads_passages != build.reads_passages)
        raise ValueError(
            f"{name} reads {reads}, but the data has {given}: use {' or '.join(others)}"
        )
    arguments = arguments_of(build.__init__, checked(name, info.known, parameters))
    built: RetrievalModel = build(image_input, text_input, **arguments)
    return built


def models() -> tuple[ModelInfo, ...]:
    """List all models with summary, paper, and parameters with their defaults."""
    load_installed()
    return tuple(MODELS[name] for name in sorted(MODELS))


def model_info(name: str) -> ModelInfo:
    """Look up the model registered under a name."""
    if name not in MODELS:
        load_installed()
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; {suggestion(name, MODELS, 'there are')}")
    return MODELS[name]
