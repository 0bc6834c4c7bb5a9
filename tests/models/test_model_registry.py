from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gradspace.models import (
    ImageInput,
    RetrievalModel,
    TextInput,
    build_model,
    model,
    model_info,
    models,
)
from gradspace.models.encoders import Encoders
from gradspace.models.registry import MODELS

INPUTS: dict[str, Any] = {
    "image_input": ImageInput(shape=(5, 6)),
    "text_input": TextInput(vocabulary_size=9),
}


def test_models_are_listed_with_parameters_and_source() -> None:
    names = [info.name for info in models()]
    assert names == sorted(names)
    assert {"vse++", "vsrn", "vse-infinity"} <= set(names)
    info = next(info for info in models() if info.name == "vse++")
    assert info.summary.startswith("Pooled image features")
    assert info.source == "Faghri et al. 2018"
    assert info.parameters["width"] == 1024
    assert model_info("vse-infinity").training["weight_decay"] == 1e-4


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("vse+", {}, r"unknown model 'vse\+'; did you mean 'vse\+\+'"),
        ("vse++", {"widht": 3}, "vse.* has no parameter 'widht'; did you mean 'width'"),
        ("vse++", {"width": 0}, "width of vse.* should be greater than 0, got 0"),
        ("vse++", {"width": 2.5}, "width of vse.* should be a valid integer, got 2.5"),
        ("vse++", {"dropout": 1.0}, "dropout of vse.* should be less than 1, got 1.0"),
        ("vsrn", {"caption_decoder": "yes"}, "caption_decoder of vsrn should be a valid boolean"),
        ("vse-infinity", {"drop": 0.6}, "drop of vse-infinity should be less than or equal to 0.5"),
        ("vse++", {"backbone_rate": 0.0}, "backbone_rate of vse.* should be greater than 0"),
    ],
)
def test_what_is_wrong_is_named(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(name, **INPUTS, **parameters)


SHARED = ("width", "word_width", "dropout", "text_rate", "backbone_rate", "freeze_batch_norm")
DEFAULTS = {
    "bfan": (1024, 300, 0.0, 0.1, 0.01, True),
    "fusion": (256, 300, 0.0, 1.0, 1.0, True),
    "scan": (1024, 300, 0.0, 0.1, 0.01, True),
    "text-dual": (256, 128, 0.0, 0.1),
    "vse++": (1024, 300, 0.0, 0.1, 1.0, False),
    "vse-infinity": (1024, 300, 0.0, 0.1, 0.01, True),
    "vsrn": (2048, 300, 0.0, 0.1, 0.01, True),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_shared_parameters_are_keys_of_every_model_with_its_own_defaults(name: str) -> None:
    known = model_info(name).parameters
    assert {key: known[key] for key in SHARED if key in known} == dict(
        zip(SHARED, DEFAULTS[name], strict=False)
    )


def test_parameters_are_given_one_by_one() -> None:
    with pytest.raises(ValueError, match=r"vse\+\+ has no parameter 'encoders'; it takes back"):
        build_model("vse++", **INPUTS, encoders=Encoders())


def test_a_parameter_given_by_name_leaves_the_defaults_of_the_others() -> None:
    class Grouped(RetrievalModel):
        """Keeps what it is built with."""

        def __init__(
            self,
            image_input: ImageInput,
            text_input: TextInput,
            *,
            depth: int = 3,
            encoders: Encoders = Encoders(width=7, text_rate=0.5),
        ) -> None:
            super().__init__()
            self.depth, self.encoders = depth, encoders

        def embed_images(self, images: Tensor) -> Tensor:
            return images

        def embed_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
            return tokens

    model("grouped", source="nobody 2000", training={})(Grouped)
    try:
        built: Any = build_model("grouped", **INPUTS, dropout=0.2, depth=4)
    finally:
        del MODELS["grouped"]
    assert built.depth == 4
    assert built.encoders == Encoders(width=7, text_rate=0.5, dropout=0.2)


def test_inputs_that_make_no_sense() -> None:
    for wrong, message in (
        ({}, "exactly one of shape .* backbone and passages"),
        ({"shape": (3,), "backbone": "x"}, "exactly one of shape"),
        ({"shape": (3, 4, 5)}, r"\(width,\) or \(regions, width\), got shape \(3, 4, 5\)"),
        ({"shape": (0,)}, "got shape"),
        ({"shape": (3,), "fine_tune": True}, "fine_tune needs a backbone"),
    ):
        with pytest.raises(ValueError, match=message):
            ImageInput(**wrong)
    with pytest.raises(ValueError, match="exactly one of vocabulary_size and encoder"):
        TextInput()
    with pytest.raises(ValueError, match="vocabulary_size must be at least 1, got 0"):
        TextInput(vocabulary_size=0)


def test_features_of_another_shape_are_refused() -> None:
    built = build_model("vse++", **INPUTS, width=4)
    with pytest.raises(ValueError, match=r"shape \['images', 5, 6\], got \[2, 5, 7\]"):
        built.embed_images(torch.zeros(2, 5, 7))


def test_a_name_is_registered_once_and_says_what_it_is() -> None:
    class Silent(RetrievalModel):
        def embed_images(self, images: Tensor) -> Tensor:
            return images

        def embed_texts(self, tokens: Tensor, lengths: Tensor) -> Tensor:
            return tokens

    with pytest.raises(ValueError, match="'vsrn' is already registered"):
        model("vsrn", source="nobody 2000", training={})(Silent)
    Silent.__doc__ = None
    with pytest.raises(ValueError, match="'silent' needs a docstring"):
        model("silent", source="nobody 2000", training={})(Silent)
